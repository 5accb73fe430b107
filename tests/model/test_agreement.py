"""Is the loss that is trained the one that is scored? A user's loop, with warnings as errors."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting import Sifter, SiftingWarning
from sifting.model import parts
from sifting.model.agreement import compare_losses
from tests.helpers.plans import plan_of


class TwoTasks(nn.Module):
    """Tokens and whole sequences are classified, as in BERT's pretraining; the losses are added."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.blocks = nn.Sequential(*(nn.Linear(8, 8) for _ in range(2)))
        self.drop = nn.Dropout(0.3)
        self.words, self.order = nn.Linear(8, 20), nn.Linear(8, 2)

    def forward(
        self, ids: Tensor, labels: Tensor | None = None, order_label: Tensor | None = None
    ) -> dict[str, Tensor]:
        h_BTH = self.drop(self.blocks(self.table(ids)))
        words_BTC, order_BC = self.words(h_BTH), self.order(h_BTH[:, 0])
        output = {"word_logits": words_BTC, "order_logits": order_BC}
        if labels is not None and order_label is not None:
            words = F.cross_entropy(words_BTC.flatten(0, 1), labels.flatten())
            output["loss"] = words + F.cross_entropy(order_BC, order_label)
        return output


def batches(count: int) -> list[dict[str, Tensor]]:
    """Sequences with one labelled token to all of them."""
    ids_BT = torch.randint(0, 20, (count * 16, 6))
    labels_BT = ids_BT.masked_fill(torch.rand(ids_BT.shape) < torch.rand(len(ids_BT), 1), -100)
    labels_BT[:, 0] = ids_BT[:, 0]
    order_B = torch.randint(0, 2, (len(ids_BT),))
    return [
        {
            "ids": ids_BT[i : i + 16],
            "labels": labels_BT[i : i + 16],
            "order_label": order_B[i : i + 16],
        }
        for i in range(0, len(ids_BT), 16)
    ]


def train(loss_of: Any) -> None:
    torch.manual_seed(0)
    model = TwoTasks().train()
    sifter = Sifter(model, exit=1, score="loss", keep=0.5, audit_every=0)
    for batch in sifter(batches(3)):
        loss_of(model(**batch), batch).backward()


@pytest.mark.parametrize("chunk", [parts.CHUNK, 300])
def test_a_models_own_loss_of_two_terms_is_the_one_scored(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where logits are so large that the gradients of two of eight samples are compared.

    Two samples have another number of labelled tokens for each sequence than all of them.
    """
    monkeypatch.setattr(parts, "CHUNK", chunk)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        train(lambda output, batch: output["loss"])
    assert [str(warning.message) for warning in heard] == []


@pytest.mark.parametrize("chunk", [parts.CHUNK, 300])
def test_two_terms_in_another_proportion_are_warned_of(
    chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "CHUNK", chunk)

    def doubled(output: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
        words = F.cross_entropy(output["word_logits"].flatten(0, 1), batch["labels"].flatten())
        return 2 * words + F.cross_entropy(output["order_logits"], batch["order_label"])

    with pytest.warns(SiftingWarning, match="agrees by"):
        train(doubled)


def test_losses_that_differ_by_more_than_noise_are_told_apart() -> None:
    batch = (torch.randn(6, 3), torch.arange(6) % 4)
    plan = plan_of(nn.Linear(3, 4), batch)
    scored = torch.tensor([1.0, 2.0, 3.0])
    for trained in (2.0, 2.001, 6.0, float("nan")):
        assert compare_losses(plan, trained, scored).same, "mean, sum, or nothing to compare"
    found = compare_losses(plan, 2.5, scored)
    assert not found.same
    assert "is 2.5" in found.message
    assert compare_losses(plan, 2.5, scored, 2.5).same, "another reduction of the same losses"
