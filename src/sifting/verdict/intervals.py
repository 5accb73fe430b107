"""Estimates from pairs of runs: differences, ratios, their intervals, and Holm's correction."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from scipy.special import stdtr, stdtrit

FEWEST_SEEDS = 3  # with two, the interval of a mean is 18 times as wide as their distance
LEVEL = 0.95
ALPHA = 0.05  # of a claim, after correction
ZERO = 1e-12  # below this, a spread or a mean is rounding


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval, over pairs of runs.

    Attributes:
        value: the estimate.
        low: lower end of the interval; None with fewer than 3 pairs.
        high: its upper end.
        p: two-sided p-value of "there is no difference"; None with fewer than 3 pairs.
        n: number of pairs.
    """

    value: float
    low: float | None
    high: float | None
    p: float | None
    n: int

    @property
    def judged(self) -> bool:
        """Whether there were enough pairs for an interval."""
        return self.low is not None

    @property
    def measurable(self) -> bool:
        """Whether it is beyond chance, were it the only one: p < 0.05."""
        return self.p is not None and self.p < ALPHA

    @property
    def alike(self) -> bool:
        """Whether there was no spread to measure chance by, and too few pairs to do without."""
        return self.low is not None and self.low == self.high and not self.measurable

    def above(self, null: float) -> bool:
        """Whether it is measurably above a value."""
        return self.low is not None and self.low > null and not self.alike

    def below(self, null: float) -> bool:
        """Whether it is measurably below a value."""
        return self.high is not None and self.high < null and not self.alike

    def to_dict(self) -> dict[str, float | None]:
        """Plain numbers for JSON."""
        return asdict(self)


def mean_of(values: Sequence[float]) -> Estimate:
    """The mean with Student's 95 % interval.

    >>> mean_of([0.9, 1.0, 1.1])
    Estimate(value=1.0, low=0.7515..., high=1.248..., p=0.0033..., n=3)
    >>> mean_of([0.9, 1.0]).judged
    False

    Args:
        values: one value for each pair, at least one.
    """
    n = len(values)
    if n == 0:
        raise ValueError("no pair to estimate from: give at least one value")
    mean = math.fsum(values) / n
    if n < FEWEST_SEEDS:
        return Estimate(mean, None, None, None, n)
    error = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (n - 1) / n)
    if error < ZERO:
        # equal to the last digit, they are counts of a small test set or times by a table. That is no
        # certainty: what can be said is that all point the same way, by chance one in 2^(n - 1)
        return Estimate(mean, mean, mean, 1.0 if abs(mean) < ZERO else 2.0 ** (1 - n), n)
    half = float(stdtrit(n - 1, (1 + LEVEL) / 2)) * error
    p = 2 * float(stdtr(n - 1, -abs(mean) / error))
    return Estimate(mean, mean - half, mean + half, p, n)


def ratio_of(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """The geometric mean of paired ratios, with the interval taken on their logarithms.

    >>> ratio_of([80.0, 81.0, 79.0], [100.0, 100.0, 100.0])
    Estimate(value=0.79..., low=0.77..., high=0.82..., p=0.001..., n=3)

    Args:
        above: positive values.
        below: their partners, positive.
    """
    if min(above, default=1.0) <= 0 or min(below, default=1.0) <= 0:
        raise ValueError(f"a ratio needs positive values, not {[*above]} over {[*below]}")
    log = mean_of([math.log(a / b) for a, b in zip(above, below, strict=True)])
    low, high = (None if end is None else math.exp(end) for end in (log.low, log.high))
    return Estimate(math.exp(log.value), low, high, log.p, log.n)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's step-down correction: p-values that stay honest when the best of several is picked.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]

    Args:
        ps: one p-value for each hypothesis.
    """
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    corrected, largest = [0.0] * len(ps), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(ps) - rank) * ps[i]))
        corrected[i] = largest
    return corrected
