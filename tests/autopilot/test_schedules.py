"""Schedules of the learning rate, and runs that are not as long."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    SequentialLR,
)

from sifting import SiftingWarning, Trial
from sifting.autopilot.account import Account
from sifting.autopilot.schedules import length_of, steps_of


def new_optimizer() -> Any:
    return torch.optim.AdamW(nn.Linear(1, 1).parameters(), lr=1e-2)


def hf_linear(optimizer: Any, steps: int) -> LRScheduler:
    """As transformers makes it: a function with the length of the run among its arguments."""

    def factor(step: int, *, num_training_steps: int) -> float:
        return 1 - step / num_training_steps

    return LambdaLR(optimizer, partial(factor, num_training_steps=steps))


def cosine(optimizer: Any, steps: int) -> LRScheduler:
    return CosineAnnealingLR(optimizer, steps)


def warmed_up(optimizer: Any, steps: int) -> LRScheduler:
    parts = [LinearLR(optimizer, 0.1, total_iters=10), CosineAnnealingLR(optimizer, steps - 10)]
    return SequentialLR(optimizer, parts, milestones=[10])


def one_cycle(optimizer: Any, steps: int) -> LRScheduler:
    return OneCycleLR(optimizer, 1e-2, total_steps=steps)


@pytest.mark.parametrize("make", [hf_linear, cosine, warmed_up, one_cycle])
def test_a_schedule_says_how_long_it_is(make: Any) -> None:
    optimizer = new_optimizer()
    schedule = make(optimizer, 200)
    optimizer.step()
    schedule.step()
    assert (steps_of(schedule), length_of(schedule)) == (1, 200)
    assert length_of(LinearLR(optimizer, total_iters=10)) is None, "it goes on as it is"


@pytest.mark.parametrize("make", [hf_linear, cosine, warmed_up])
def test_a_schedule_and_a_run_of_other_lengths_are_warned_of(make: Any) -> None:
    """A run that is said to be half as long ended, silently, at the height of its learning rate."""
    optimizer = new_optimizer()
    for updates, told in ((100, "the run ends there"), (400, "moved on past its end")):
        account = Account(Trial(updates=updates, schedule=make(optimizer, 200)))
        with pytest.warns(
            SiftingWarning, match=rf"for 200 updates, and updates={updates} .*{told}"
        ):
            account.hand_out(1.0)
        account.hand_out(1.0)  # it is said once
    for updates, accumulate in ((200, 1), (202, 1), (400, 2), (370, 2)):
        trial = Trial(updates=updates, accumulate=accumulate, schedule=make(optimizer, 200))
        Account(trial).hand_out(1.0)


def test_a_schedule_that_would_raise_at_its_end_is_refused_at_the_start() -> None:
    schedule = one_cycle(new_optimizer(), 200)
    with pytest.raises(ValueError, match="for 200 updates, and updates=400 batches are 400"):
        Account(Trial(updates=400, schedule=schedule)).hand_out(1.0)
    with pytest.warns(SiftingWarning, match="updates=200 batches with accumulate=4 are 50"):
        Account(Trial(updates=200, accumulate=4, schedule=schedule)).hand_out(1.0)


def test_what_is_left_of_a_schedule_is_what_counts() -> None:
    optimizer = new_optimizer()
    schedule = one_cycle(optimizer, 200)
    optimizer.step()
    for _ in range(120):
        schedule.step()
    account = Account(Trial(updates=80, schedule=schedule))
    account.hand_out(1.0)  # warns of nothing
    assert not account.over
