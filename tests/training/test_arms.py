from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sifting.exits.memory import MemoryExit
from sifting.training import arms
from sifting.training.arms import ARMS, Arm, find_arm
from sifting.training.assemble import selector_settings


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))


def test_an_arm_of_ones_own_may_keep_by_a_function_of_the_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own: dict[str, Any] = {"keep": lambda step: 0.25, "score": "loss", "exit": "last"}
    monkeypatch.setattr(arms, "OWN", own, raising=False)
    sifter = find_arm("sifting.training.arms:OWN").make(network(), early=1, seed=3)
    assert sifter.schedule.keep_at(0) == 0.25
    batch = torch.randn(8, 4), torch.zeros(8).long()
    assert len(sifter.select(batch).indices) == 2


def test_an_arm_with_memory_has_the_problems_samples_and_says_where_there_are_none() -> None:
    sifter = ARMS["memory"].make(network(), early=1, samples=7, ids="index")
    assert isinstance(sifter.exit, MemoryExit)
    assert sifter.exit.size == 7
    with pytest.raises(ValueError, match="needs samples that have ids"):
        ARMS["memory"].make(network(), early=1, draws="batch")
    drawn = ARMS["memory"].make(network(), early=1).exit  # the sifter draws, and knows the samples
    assert isinstance(drawn, MemoryExit)
    assert drawn.size is None


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("sift@0", "give a block number from 1"),
        ("memory@2", "'memory' has no early exit to move"),
        ("sifting.training.arms:NONE", "cannot be imported"),
        ("mine:[red]x[/red]", "cannot be imported.*Give module:attribute"),
        ("sifting.training.arms:__name__", "is a str: it must be an Arm"),
    ],
)
def test_arms_that_do_not_exist_are_named(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        find_arm(name)


def test_an_arm_at_another_exit_is_the_same_otherwise() -> None:
    moved = find_arm("sift-mixed@2")
    assert moved == Arm(moved.about, ARMS["sift-mixed"].sifter, 2)


@pytest.mark.parametrize(
    "objective",
    [
        {"loss_fn": nn.MSELoss()},
        {"loss_fn": nn.BCEWithLogitsLoss()},
        {"losses": lambda model, batch: (model(batch[0]) - batch[1]).square().mean(dim=1)},
    ],
)
def test_the_default_arm_scores_by_loss_where_there_are_no_classes(objective: Any) -> None:
    sifter = ARMS["default"].make(network(), early=1, seed=3, **objective)
    assert selector_settings(sifter)["score"] == "default"  # nobody has seen a batch yet
    sifter.select((torch.randn(8, 4), torch.rand(8, 3).round()))
    assert sifter.settings()["score"] == "loss"
    by_class = ARMS["default"].make(network(), early=1, seed=3)
    assert selector_settings(by_class)["score"] == "entropy"
    by_class.select((torch.randn(8, 4), torch.arange(8) % 3))
    assert by_class.settings()["score"] == "entropy"
