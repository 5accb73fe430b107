"""How far a schedule of the learning rate is, how long it goes on, and whether that is as long as the run."""

from __future__ import annotations

from typing import Any

from torch.optim.lr_scheduler import (
    CosineAnnealingLR,
    LambdaLR,
    OneCycleLR,
    PolynomialLR,
    SequentialLR,
)

from sifting.autopilot.trial import Trial
from sifting.measure.audit import warn_user

SHORT, LONG = 0.99, 1.25  # steps of a schedule for each of a run, outside of which one is wrong


def check_length(trial: Trial, first: int) -> None:
    """Refuse, or warn of, a schedule and a run of other lengths: the one would be cut off by the other.

    Args:
        trial: the schedule, and the length of the run.
        first: steps that the schedule has made before.
    """
    length, planned = length_of(trial.schedule), (trial.updates or 0) // trial.accumulate
    if length is None or planned == 0:
        return
    left = length - first
    together = f" with accumulate={trial.accumulate}" * (trial.accumulate > 1)
    told = (
        f"schedule= of the Trial goes on for {left} updates, and updates={trial.updates} batches{together} "
        f"are {planned}"
    )
    advice = (
        "give updates= as many batches as the run trains, and plan the schedule for their updates"
    )
    if left < SHORT * planned:
        if isinstance(trial.schedule, OneCycleLR):  # it raises there
            raise ValueError(f"{told}: it would be moved on past its end. So {advice}")
        warn_user(f"{told}: it would be moved on past its end. If that is not meant, {advice}")
    elif left > LONG * planned:
        warn_user(
            f"{told}: the run ends there, whatever the learning rate is then. If that is not meant, {advice}"
        )


def steps_of(schedule: Any) -> int:
    """How often a schedule was stepped.

    >>> import torch
    >>> from torch.optim.lr_scheduler import ChainedScheduler, ConstantLR
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> steps_of(ChainedScheduler([ConstantLR(optimizer)]))
    0
    """
    while not hasattr(schedule, "last_epoch"):  # of several at once, each counts
        schedule = schedule._schedulers[0]
    return int(schedule.last_epoch)


def length_of(schedule: Any) -> int | None:
    """How many steps a schedule was planned for, in all; None where it does not say.

    >>> import torch
    >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    >>> length_of(OneCycleLR(optimizer, 1.0, total_steps=50)), length_of(LambdaLR(optimizer, float))
    (50, None)
    """
    if isinstance(schedule, OneCycleLR):
        return int(schedule.total_steps)
    if isinstance(schedule, CosineAnnealingLR):
        return int(schedule.T_max)
    if isinstance(schedule, PolynomialLR):
        return int(schedule.total_iters)
    if isinstance(schedule, SequentialLR):
        last = length_of(schedule._schedulers[-1])
        return None if last is None else int(schedule._milestones[-1]) + last
    if isinstance(schedule, LambdaLR):  # those of transformers are functions with their arguments
        given = [
            getattr(one, "keywords", {}).get("num_training_steps") for one in schedule.lr_lambdas
        ]
        return max((one for one in given if isinstance(one, int)), default=None)
    return None
