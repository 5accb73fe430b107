"""Finding out, on some samples, how a model is scored."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.model.call import Call
from sifting.model.resolving import find_plan
from sifting.model.sample_losses import PerSampleLoss
from tests.helpers.plans import Language, text

BATCH = (torch.randn(6, 3, generator=torch.Generator().manual_seed(0)), torch.arange(6) % 4)


def found(model: nn.Module, batch: Any = BATCH, **options: Any) -> Any:
    with torch.no_grad():
        return find_plan(Call(), model.eval(), batch, **options)


def test_a_head_is_found_where_samples_have_many_positions() -> None:
    plan = found(Language(), text())
    assert list(plan.heads) == ["logits"]
    assert plan.heads["logits"].path == "head"
    assert plan.shapes == {"logits": (6, 20)}
    assert found(nn.Linear(3, 4)).heads == {}


def test_the_users_loss_takes_the_place_of_the_objective() -> None:
    plan = found(nn.Linear(3, 4), loss_fn=PerSampleLoss(F.cross_entropy))
    assert plan.kind == "loss_fn"
    assert plan.heads == {}
    own = found(nn.Linear(3, 4), losses=lambda model, batch: model(batch[0])[:, 0])
    assert (own.kind, own.parts) == ("losses", ())
    both = found(
        nn.Linear(3, 4), losses=lambda model, batch: model(batch[0])[:, 0], score="entropy"
    )
    assert both.kind == "losses"
    assert len(both.parts) == 1, "logits are looked for where the score needs them"


class Two(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"a_logits": x, "b_logits": x}


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (
            nn.Linear(3, 4),
            {"loss_fn": PerSampleLoss(F.cross_entropy), "losses": lambda m, b: b[0][:, 0]},
            "both say what a sample's loss is",
        ),
        (
            Two(),
            {"loss_fn": PerSampleLoss(F.cross_entropy)},
            "needs one output and one set of labels",
        ),
        (
            nn.Linear(3, 4),
            {
                "loss_fn": PerSampleLoss(
                    lambda z, y: F.cross_entropy(z - z.mean(0), y, reduction="none")
                )
            },
            "loss_fn mixes samples",
        ),
        (nn.Linear(3, 4), {"losses": lambda m, b: torch.zeros(2)}, r"losses= gave \(2,\) for 6"),
    ],
)
def test_what_cannot_be_scored_says_what_to_pass(
    model: nn.Module, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        found(model, **options)


def test_a_label_of_no_class_is_named_by_its_row_in_the_batch() -> None:
    x, y = BATCH
    wrong = (x[:2], torch.tensor([0, 9]))
    with pytest.raises(ValueError, match=r"labels\[5\] is 9"):
        found(nn.Linear(3, 4), wrong, rows=torch.tensor([1, 5]))
    assert found(nn.Linear(3, 4), (x, y)).kind == "parts"
