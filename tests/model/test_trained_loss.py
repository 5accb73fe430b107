"""The gradient of the user's loss, noted now and then, and held against the plan's."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from sifting.model.trained_loss import COMPARED_UNTIL, TrainedLoss
from tests.helpers.plans import plan_of

X, Y = torch.randn(8, 3), torch.arange(8) % 4


def listened(check: TrainedLoss, model: nn.Module, *, smoothing: float = 0.0) -> None:
    output = model(X)
    check.listen(output, len(X))
    F.cross_entropy(output, Y, label_smoothing=smoothing).backward()


def test_what_is_trained_as_it_is_scored_is_looked_at_ever_more_seldom() -> None:
    model, check = nn.Linear(3, 4), TrainedLoss(compares=True)
    plan, step, looked = plan_of(model, (X, Y)), 1, []
    for step in range(1, 4 * COMPARED_UNTIL):
        if check.due(step):
            looked.append(step)
            listened(check, model)
            assert check.noted
            assert check.compare(plan, (X, Y), weights_B=torch.ones(8), step=step) is None
            assert not check.noted
    assert looked == [1, 2, 4, 8, 16, 32, 64, 128, 256]


def test_another_loss_is_said_once() -> None:
    model, check = nn.Linear(3, 4), TrainedLoss(compares=True)
    listened(check, model, smoothing=0.3)
    said = check.compare(plan_of(model, (X, Y)), (X, Y), weights_B=None, step=0)
    assert said is not None
    assert "loss_fn=" in said
    assert not check.due(10**6)


def test_nothing_is_concluded_without_a_plan_or_from_another_batch() -> None:
    model, check = nn.Linear(3, 4), TrainedLoss(compares=True)
    listened(check, model, smoothing=0.3)
    assert check.compare(None, (X, Y), weights_B=None, step=3) is None
    assert check.due(0), "the next one is compared"
    check.listen(model(X), len(X) + 1)
    assert not check.noted


def test_who_selects_nothing_by_score_compares_nothing() -> None:
    assert not TrainedLoss(compares=False).due(0)
