"""Where learning happens: how much of the progress on held-out samples is made on those that a
scorer would keep. Pure functions.

Shapes: M held-out samples.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

CLEAR = 2.0  # standard errors from which on progress is more than noise


@dataclass(frozen=True)
class Progress:
    """How far held-out losses fell between two looks, and where; sums, so that looks add up.

    Attributes:
        kept: fall of the losses of the samples that would be kept, over all samples.
        rest: of the others.
        kept_error, rest_error: variances of the two.
    """

    kept: float
    rest: float
    kept_error: float
    rest_error: float

    def __add__(self, other: Progress) -> Progress:
        return Progress(
            self.kept + other.kept,
            self.rest + other.rest,
            self.kept_error + other.kept_error,
            self.rest_error + other.rest_error,
        )

    def beside(self, late: Progress, *, drift: float) -> Progress:
        """The same as an earlier part of some progress, weighed so that the sum of both has the best share.

        >>> early, late = Progress(0.2, 0.2, 1e-4, 1e-4), Progress(0.03, 0.01, 1e-6, 1e-6)
        >>> round((early + late).share, 2), round((early.beside(late, drift=0.0) + late).share, 2)
        (0.52, 0.61)

        Args:
            late: the later part.
            drift: standard deviation by which the share may have changed since; the error holds it.
        """
        variance = self.error**2 + drift**2
        if variance == 0:
            return self
        factor = late.error**2 / variance * (late.kept + late.rest) / (self.kept + self.rest)
        older = self.blurred(drift)
        return Progress(
            factor * older.kept,
            factor * older.rest,
            factor**2 * older.kept_error,
            factor**2 * older.rest_error,
        )

    def blurred(self, drift: float) -> Progress:
        """The same, less sure: its share may have changed since.

        >>> round(Progress(0.03, 0.01, 1e-6, 1e-6).blurred(0.12).error, 2)
        0.12

        Args:
            drift: standard deviation of that change.
        """
        share, total = self.share, self.kept + self.rest
        more = (drift * total) ** 2 / ((1 - share) ** 2 + share**2)
        return Progress(self.kept, self.rest, self.kept_error + more, self.rest_error + more)

    @property
    def told(self) -> bool:
        """Whether there is progress beyond noise, of which there can be a share.

        >>> Progress(0.03, 0.01, 1e-4, 1e-4).told, Progress(0.03, -0.01, 1e-4, 1e-4).told
        (True, False)
        """
        return self.kept + self.rest > CLEAR * math.sqrt(self.kept_error + self.rest_error)

    @property
    def lost(self) -> bool:
        """Whether losses rose in all, by more than noise.

        >>> Progress(-0.03, -0.01, 1e-4, 1e-4).lost, Progress(-0.01, 0.0, 1e-4, 1e-4).lost
        (True, False)
        """
        return -self.kept - self.rest > CLEAR * math.sqrt(self.kept_error + self.rest_error)

    @property
    def share(self) -> float:
        """The kept samples' part of the progress; not a number where none is made.

        >>> Progress(kept=0.03, rest=0.01, kept_error=0.0, rest_error=0.0).share
        0.75
        """
        total = self.kept + self.rest
        return self.kept / total if total > 0 else math.nan

    @property
    def balance(self) -> float:
        """The same, with what the others lose counted against the kept: never above 1.

        >>> round(Progress(kept=0.03, rest=-0.01, kept_error=0.0, rest_error=0.0).balance, 2)
        0.75
        """
        whole = abs(self.kept) + abs(self.rest)
        return self.kept / whole if whole > 0 else math.nan

    @property
    def error(self) -> float:
        """Standard error of the share; infinite where no progress is told from noise."""
        if not self.told:
            return math.inf
        total = self.kept + self.rest
        share = self.share
        variance = (1 - share) ** 2 * self.kept_error + share**2 * self.rest_error
        return math.sqrt(variance) / total

    @property
    def forgets(self) -> bool:
        """Whether the others' losses rise, beyond noise, by a quarter of the kept ones' fall.

        >>> Progress(0.04, -0.03, 1e-6, 1e-6).forgets, Progress(0.04, -0.001, 1e-6, 1e-6).forgets
        (True, False)
        """
        return self.rest + 2 * math.sqrt(self.rest_error) < 0 and -self.rest > 0.25 * self.kept


def progress(before_M: Tensor, after_M: Tensor, scores_M: Tensor, ratio: float) -> Progress:
    """Progress between two looks at the same samples, by what one in `ratio` a scorer would keep.

    >>> before, after = torch.tensor([2.0, 2.0, 1.0, 1.0]), torch.tensor([1.0, 1.5, 1.0, 0.5])
    >>> round(progress(before, after, torch.tensor([4.0, 3.0, 2.0, 1.0]), 2).share, 2)
    0.75

    Args:
        before_M, after_M: losses at the two looks.
        scores_M: by which the samples would be chosen.
        ratio: candidates for each that is kept.
    """
    known_M = (before_M - after_M).isfinite()
    before_M, after_M, scores_M = before_M[known_M], after_M[known_M], scores_M.cpu()[known_M]
    count = len(scores_M)
    if not count:
        return Progress(0.0, 0.0, math.inf, math.inf)
    fall_M = (before_M - after_M).double()
    kept_M = torch.zeros(count, dtype=torch.bool)
    kept_M[scores_M.cpu().argsort(descending=True, stable=True)[: round(count / ratio)]] = True
    fall_M = fall_M.cpu()
    parts = [fall_M * kept_M, fall_M * ~kept_M]
    errors = [float(part.var()) / count if count > 1 else math.inf for part in parts]
    return Progress(float(parts[0].mean()), float(parts[1].mean()), errors[0], errors[1])


def speedup(share: float, *, ratio: float, explore: float) -> float:
    """Progress of a step on the kept over that of a plain one, if each sample adds its own.

    >>> round(speedup(0.75, ratio=2, explore=0.25), 2), round(speedup(0.5, ratio=2, explore=0.25), 2)
    (1.25, 1.0)

    Of a batch, 1 − explore is drawn from the one in `ratio` that makes `share` of the progress,
    and the rest from the others. It takes no account of what is forgotten, so it is an estimate
    for small ratios and an upper bound for large ones.
    """
    others = explore * ratio / (ratio - 1) if ratio > 1 else 1.0
    return (1 - explore) * ratio * share + others * (1 - share)
