"""What is run for a task: arms, learning rates, seeds and the budget. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

Tune = Literal["every", "baseline", "none"]  # the arms whose learning rates are chosen
BASELINE, CONTROL = "baseline", "random"
SHORTER = ("baseline-60", "baseline-75", "baseline-90")
LONGER = (*SHORTER, "baseline-133")
PAPER = ("sift", "sift-entropy")
FIXED = (
    *PAPER,
    "sift-last",
    "tuned",
    "tuned-entropy",
    "default",
    "input-entropy",
    "memory",
    "percentile",
    "infobatch",
)
AUTO = "auto"
WHOLE = "auto-full"  # the autopilot with all of the baseline's updates
BY_ENTROPY = ("sift-entropy", "tuned-entropy", "default", "input-entropy")
RATES = (1 / 3, 1.0, 3.0)  # of the preset's learning rate
FURTHER, MOST_RATES = 3.0, 5  # how far on where the best is the last that was tried; of one arm
TUNING_PART = 0.5  # of the updates of the comparison, in which learning rates are tried
TUNING_SEED = 100  # of the runs by which learning rates are chosen, and of no other


def arms_of(*, classes: bool, known: Mapping[str, object]) -> tuple[str, ...]:
    """The arms of a task beside the baseline and random-keep.

    >>> "default" in arms_of(classes=False, known={"default": 0, "memory": 0})
    False

    Args:
        classes: whether there is an entropy to select by.
        known: the arms that the library has.
    """
    wanted = (*LONGER, *FIXED, AUTO, WHOLE)
    return tuple(arm for arm in wanted if arm in known and (classes or arm not in BY_ENTROPY))


def tuned_arms(arms: Sequence[str], tune: Tune) -> tuple[str, ...]:
    """The arms whose learning rate is tried; baselines of other lengths have the baseline's.

    >>> tuned_arms(("memory", "baseline-75"), "every")
    ('baseline', 'random', 'memory')
    >>> tuned_arms(("memory", "baseline-75"), "baseline")
    ('baseline',)
    """
    if tune != "every":
        return (BASELINE,) if tune == "baseline" else ()
    return tuple(arm for arm in (BASELINE, CONTROL, *arms) if arm not in LONGER)


def rates_of(rate: float) -> tuple[float, ...]:
    """The learning rates that are tried.

    >>> rates_of(3e-3)
    (0.001, 0.003, 0.009)
    """
    return tuple(float(f"{rate * factor:.2g}") for factor in RATES)


def rates_beyond(
    found_by_arm: Mapping[str, Mapping[float, float]], *, lower_is_better: bool
) -> dict[float, tuple[str, ...]]:
    """The learning rates that are still to be tried, and by which arms: a best at the end is no best.

    >>> rates_beyond({"memory": {0.1: 0.7, 0.3: 0.8}}, lower_is_better=False)
    {0.9: ('memory',)}

    Args:
        found_by_arm: of each arm, by learning rate; what diverged is NaN, or missing.
        lower_is_better: of the metric.
    """
    arms_by_rate: dict[float, tuple[str, ...]] = {}
    best = best_rates(found_by_arm, lower_is_better=lower_is_better)
    for arm, rate in best.items():
        tried = sorted(found_by_arm[arm])  # also where it diverged: that is an end, too
        if len(tried) >= MOST_RATES or rate not in (tried[0], tried[-1]):
            continue
        further = rate * FURTHER if rate == tried[-1] else rate / FURTHER
        further = float(f"{further:.2g}")
        arms_by_rate[further] = (*arms_by_rate.get(further, ()), arm)
    return arms_by_rate


def best_rates(
    found_by_arm: Mapping[str, Mapping[float, float]], *, lower_is_better: bool
) -> dict[str, float]:
    """The learning rate of each arm, by its metric on held-out samples.

    >>> best_rates({"memory": {0.1: 0.7, 0.3: 0.8}}, lower_is_better=False)
    {'memory': 0.3}

    Args:
        found_by_arm: of each arm, by learning rate; what diverged is NaN, or missing.
        lower_is_better: of the metric.
    """
    pick = min if lower_is_better else max
    known = {
        arm: {rate: value for rate, value in found.items() if not math.isnan(value)}
        for arm, found in found_by_arm.items()
    }
    return {arm: pick(found, key=found.__getitem__) for arm, found in known.items() if found}


def with_baseline(rates: Mapping[str, float], arms: Sequence[str]) -> dict[str, float]:
    """The learning rates of all arms: the baseline's for those that have none of their own.

    >>> with_baseline({"baseline": 0.1, "memory": 0.3}, ("baseline-75", "memory"))
    {'baseline-75': 0.1, 'memory': 0.3, 'baseline': 0.1}
    """
    if BASELINE not in rates:
        return dict(rates)
    return {**dict.fromkeys(arms, rates[BASELINE]), **rates}
