"""What a comparison could have seen, and how many seeds would settle it. Pure.

Power is that of Student's t on pairs, exact by the noncentral t, at the spread that the seeds showed.
With three seeds that spread is itself known only within a factor of two or so.
"""

from __future__ import annotations

import math

from scipy.special import nctdtr, stdtrit

from sifting.verdict.intervals import ALPHA, LEVEL, ZERO, Estimate

POWER = 0.8  # how often a gain of the stated size would be called one
MOST_SEEDS = 100  # more than these nobody runs: the answer is then that it is not worth it
_FARTHEST = 1e4  # standard errors


def error_of(estimate: Estimate | None, *, log: bool) -> float | None:
    """Standard error behind an estimate's interval; None where there is no interval or no spread.

    >>> round(error_of(Estimate(1.0, 0.0, 2.0, 0.05, 3), log=False), 4)
    0.2324

    Args:
        estimate: a difference, or a ratio.
        log: whether it is a ratio, whose interval was taken on logarithms.
    """
    if estimate is None or estimate.low is None or estimate.high is None:
        return None
    ends = (estimate.low, estimate.high)
    low, high = (math.log(end) for end in ends) if log else ends
    error = (high - low) / 2 / float(stdtrit(estimate.n - 1, (1 + LEVEL) / 2))
    return error if error > ZERO else None


def power(distance: float, n: int, *, claims: int = 1) -> float:
    """How often a gain is called one.

    >>> round(power(3.5, 10), 2), round(power(3.5, 10, claims=6), 2)
    (0.87, 0.57)

    Args:
        distance: its size in standard errors.
        n: pairs of runs.
        claims: how many there are; the best of them must pass Holm's first step.
    """
    if not distance > 0:
        return 0.0
    critical = float(stdtrit(n - 1, 1 - ALPHA / claims / 2))
    return 1.0 - float(nctdtr(n - 1, distance, critical))


def detectable(estimate: Estimate | None, *, log: bool, claims: int = 1) -> float | None:
    """The least gain that would have been called one with a power of 0.8; of a ratio, as a share.

    >>> round(detectable(Estimate(0.0, -1.0, 1.0, 1.0, 5), log=False), 2)
    1.35

    Args:
        estimate: of which the spread is taken.
        log: whether it is a ratio.
        claims: how many there are.
    """
    error = error_of(estimate, log=log)
    if estimate is None or error is None:
        return None
    low, high = 0.0, 1.0
    while power(high, estimate.n, claims=claims) < POWER:
        low, high = high, 2 * high
        if high > _FARTHEST:
            return None
    for _ in range(40):
        middle = (low + high) / 2
        if power(middle, estimate.n, claims=claims) < POWER:
            low = middle
        else:
            high = middle
    return 1 - math.exp(-high * error) if log else high * error


def seeds_to_settle(estimate: Estimate | None, *, log: bool, claims: int = 1) -> int | None:
    """Seeds with which the gain, were it what it looks like, would be called one; None above 100.

    >>> seeds_to_settle(Estimate(0.9, 0.8, 1.0125, 0.06, 4), log=True)
    7

    Args:
        estimate: whose value points to a gain.
        log: whether it is a ratio.
        claims: how many there are.
    """
    error = error_of(estimate, log=log)
    if estimate is None or error is None:
        return None
    effect = abs(math.log(estimate.value) if log else estimate.value)
    for n in range(estimate.n + 1, MOST_SEEDS + 1):
        if power(effect / error * math.sqrt(n / estimate.n), n, claims=claims) >= POWER:
            return n
    return None
