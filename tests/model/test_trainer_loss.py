from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor
from transformers.trainer_pt_utils import LabelSmoother

from sifting.model.trainer_loss import trainer_losses
from tests.helpers.models import SMALL


def trainer(model: Any, **options: Any) -> Any:
    return SimpleNamespace(
        **{"compute_loss_func": None, "label_smoother": None, **options}, model=model
    )


def test_the_trainers_own_loss_function_is_what_is_scored() -> None:
    model = hf.BertForSequenceClassification(hf.BertConfig(**SMALL, num_labels=4)).eval()
    ids, y = torch.randint(5, 150, (6, 9)), torch.arange(6) % 4

    def focal(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
        nll = F.cross_entropy(outputs.logits, labels, reduction="none")
        return ((1 - (-nll).exp()) ** 2 * nll).sum() / num_items_in_batch

    losses = trainer_losses(trainer(model, compute_loss_func=focal))
    assert losses is not None
    with torch.no_grad():
        got = losses(model, {"input_ids": ids, "labels": y})
        nll = F.cross_entropy(model(ids).logits, y, reduction="none")
    torch.testing.assert_close(got, (1 - (-nll).exp()) ** 2 * nll)


@pytest.mark.parametrize("kind", ["causal", "masked"])
def test_the_trainers_label_smoothing_is_what_is_scored(kind: str) -> None:
    if kind == "causal":
        model = hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, num_key_value_heads=2)).eval()
    else:
        model = hf.BertForMaskedLM(hf.BertConfig(**SMALL)).eval()
    ids = torch.randint(5, 150, (4, 7))
    y = ids.clone()
    y[1, 4:], y[3, kind == "causal" :] = -100, -100
    losses = trainer_losses(trainer(model, label_smoother=LabelSmoother(epsilon=0.2)))
    assert losses is not None
    with torch.no_grad():
        got = losses(model, {"input_ids": ids, "labels": y})
        z = model(ids).logits
    z, y = (z[:, :-1], y[:, 1:]) if kind == "causal" else (z, y)
    want = [
        F.cross_entropy(z[i], y[i], label_smoothing=0.2) if i != 3 else torch.zeros(())
        for i in range(4)
    ]
    torch.testing.assert_close(got, torch.stack(want))


def test_weights_of_classes_that_cancel_in_one_sample_are_refused() -> None:
    model = hf.BertForSequenceClassification(hf.BertConfig(**SMALL, num_labels=4)).eval()
    batch = {"input_ids": torch.randint(5, 150, (6, 9)), "labels": torch.arange(6) % 4}

    def weighted(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
        return F.cross_entropy(outputs.logits, labels, weight=torch.tensor([1.0, 90.0, 0.1, 1.0]))

    losses = trainer_losses(trainer(model, compute_loss_func=weighted))
    assert losses is not None
    with torch.no_grad(), pytest.raises(ValueError, match=r"6 samples is .*sift=\{'loss_fn'"):
        losses(model, batch)


def test_a_trainer_that_takes_the_models_loss_needs_nothing() -> None:
    assert trainer_losses(trainer(None)) is None


def test_labels_that_are_missing() -> None:
    losses = trainer_losses(trainer(None, compute_loss_func=lambda *a, **k: None))
    assert losses is not None
    with pytest.raises(ValueError, match=r"'labels', and the batch holds \['input_ids'\]"):
        losses(torch.nn.Identity(), {"input_ids": torch.zeros(2, 3)})


@pytest.mark.parametrize("how", ["smoother", "function"])
def test_packed_documents_have_the_losses_that_they_have_alone(how: str) -> None:
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, num_key_value_heads=2)).eval()

    def smooth(output: Any, labels: Tensor, num_items_in_batch: Tensor | None = None) -> Tensor:
        logits, wanted = output.logits[:, :-1].transpose(1, 2), labels[:, 1:]
        total = F.cross_entropy(logits, wanted, label_smoothing=0.2, reduction="sum")
        return total / num_items_in_batch

    own = {"compute_loss_func": smooth} if how == "function" else {}
    losses = trainer_losses(trainer(model, **own or {"label_smoother": LabelSmoother(epsilon=0.2)}))
    assert losses is not None
    rows = [torch.randint(5, 150, (1, size)) for size in (6, 2, 9)]
    labels = [row.clone() for row in rows]
    for one in labels:
        one[0, 0] = -100  # no document's first token is predicted from the one before
    labels[0][0, :4] = -100
    packed = {
        "input_ids": torch.cat(rows, dim=1),
        "position_ids": torch.cat([torch.arange(row.shape[1]) for row in rows])[None],
        "labels": torch.cat(labels, dim=1),
    }
    with torch.no_grad():
        alone = [
            losses(model, {"input_ids": a, "labels": b}) for a, b in zip(rows, labels, strict=True)
        ]
        torch.testing.assert_close(losses(model, packed), torch.cat(alone), rtol=1e-4, atol=1e-5)
