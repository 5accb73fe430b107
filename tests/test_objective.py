from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
import transformers as hf
from conftest import SMALL
from torch import Tensor, nn

from sifting import Sifter
from sifting.calls import Call
from sifting.objective import PerSampleLoss, resolve


def test_question_answering_averages_its_two_parts() -> None:
    model = hf.BertForQuestionAnswering(hf.BertConfig(**SMALL)).eval()
    batch = {
        "input_ids": torch.randint(5, 150, (6, 9)),
        "start_positions": torch.randint(0, 9, (6,)),
        "end_positions": torch.randint(0, 9, (6,)),
    }
    with torch.no_grad():
        parts = resolve(Call(), model, batch).parts
        out = model(input_ids=batch["input_ids"])
    assert [(p.logits, p.labels, p.weight) for p in parts] == [
        ("start_logits", "start_positions", 0.5),
        ("end_logits", "end_positions", 0.5),
    ]
    want = 0.5 * sum(
        F.cross_entropy(out[f"{side}_logits"], batch[f"{side}_positions"], reduction="none")
        for side in ("start", "end")
    )
    torch.testing.assert_close(Sifter(model, exit="last", score="loss").score(batch), want)


def test_token_classification() -> None:
    model = hf.BertForTokenClassification(hf.BertConfig(**SMALL, num_labels=4)).eval()
    labels = torch.randint(0, 4, (5, 7))
    labels[:, 5:] = -100
    batch = {"input_ids": torch.randint(5, 150, (5, 7)), "labels": labels}
    got = Sifter(model, exit="last", score="loss").score(batch)
    want = [model(**{k: v[i : i + 1] for k, v in batch.items()}).loss.item() for i in range(5)]
    assert got.tolist() == pytest.approx(want, rel=1e-5)


def test_dense_predictions_with_the_class_second() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1))
    x, y = torch.randn(5, 3, 6, 6), torch.randint(0, 4, (5, 6, 6))
    got = Sifter(model, exit="last", score="loss").score((x, y))
    with torch.no_grad():
        want = F.cross_entropy(model(x), y, reduction="none").mean(dim=(1, 2))
    torch.testing.assert_close(got, want)


def test_soft_labels_of_a_pair_are_cross_entropy_targets() -> None:
    model = nn.Sequential(nn.Linear(3, 4))
    x, y = torch.randn(5, 3), torch.rand(5, 4).softmax(-1)
    got = Sifter(model, exit="last", score="loss").score((x, y))
    with torch.no_grad():
        torch.testing.assert_close(got, F.cross_entropy(model(x), y, reduction="none"))


def test_loss_function_must_give_one_value_a_sample() -> None:
    with pytest.raises(ValueError, match=r"gave a tensor of shape \(3,\) for 4 samples"):
        PerSampleLoss(lambda z, y: torch.zeros(3))(torch.zeros(4, 2), torch.zeros(4))


def test_a_loss_module_of_the_user_is_not_modified() -> None:
    mine = nn.CrossEntropyLoss(label_smoothing=0.2)
    z, y = torch.randn(4, 3), torch.arange(4) % 3
    torch.testing.assert_close(
        PerSampleLoss(mine)(z, y), F.cross_entropy(z, y, label_smoothing=0.2, reduction="none")
    )
    assert mine.reduction == "mean"


def test_custom_loss_needs_one_output() -> None:
    class Two(nn.Module):
        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"a_logits": x, "b_logits": x}

    sifter = Sifter(Two(), exit="last", score="loss", loss_fn=F.mse_loss)
    with pytest.raises(ValueError, match=r"loss_fn needs one output.*\['a_logits', 'b_logits'\]"):
        sifter.score({"x": torch.zeros(4, 3), "labels": torch.zeros(4, 3)})
