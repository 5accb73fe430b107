"""How batches are scored, found out once for each kind of them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting import Sifter, SiftingWarning
from sifting.exits.planning import UNPLANNED
from tests.helpers.models import Net, candidates


def test_a_plan_is_found_once_for_each_kind_of_labels(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss")
    scorer = sifter._scorer
    x, y = candidates(1)[0]
    assert scorer.known((x, y)) is None
    sifter.score((x, y))
    first = scorer.plan
    assert scorer.known((x, y)) is first
    sifter.score((x, y.flip(0)))
    assert scorer.plan is first
    soft = F.one_hot(y, 5).float()
    sifter.score((x, soft))
    assert scorer.plan is not first
    assert len(scorer.plans) == 2


def test_a_batch_without_any_label_has_no_plan_and_many_are_told_of(net: Net) -> None:
    sifter = Sifter(net, exit=1, score="loss")
    batch = (torch.randn(6, 8), torch.full((6,), -100))
    with pytest.warns(SiftingWarning, match=f"{UNPLANNED} batches had no sample with a label"):
        for _ in range(UNPLANNED):
            assert sifter._scorer.scores(batch, learn=True) is None
    assert sifter._scorer.plans == {}


class Late(nn.Module):
    """Its own loss weighs a class that the first batches do not have."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.Sequential(*[nn.Linear(8, 8) for _ in range(3)])
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        z = self.head(self.blocks(x))
        weight = torch.tensor([1.0, 1.0, 1.0, 1.0, 9.0])
        return {"logits": z} | (
            {} if labels is None else {"loss": F.cross_entropy(z, labels, weight)}
        )


def test_a_class_that_is_new_is_held_against_the_models_own_loss() -> None:
    sifter = Sifter(Late(), exit="last", score="loss")
    x = torch.randn(6, 8)
    sifter.score({"x": x, "labels": torch.tensor([0, 1, 2, 3, 0, 1])})
    with pytest.raises(ValueError, match="weigh"):
        sifter.score({"x": x, "labels": torch.tensor([0, 1, 2, 3, 4, 4])})


def test_the_device_is_that_of_the_parameters() -> None:
    assert Sifter(nn.ReLU(), policy="random")._scorer.device.type == "cpu"
    meta = nn.Linear(2, 2, device="meta")
    assert Sifter(meta, policy="random")._scorer.device.type == "meta"
