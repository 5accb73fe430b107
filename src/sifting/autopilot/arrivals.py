"""Progress on samples as they come: before it is trained for the first time, a sample is held out.

Where a user gives no held-out samples, the losses of new ones stand in for theirs. They are other
samples at every step, so that what is compared are means over windows of steps, each twice as
long as the one before.

Shapes: B samples of a step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass
from typing import Any

import torch
from torch import Tensor

from sifting.measure.learning import Progress
from sifting.plain import Plain

FIRST = 50  # steps that are left out, and the length of the first window
FEWEST = 256  # samples of a window, below which it says nothing
SETTLED = 0.06  # error of a share that a comparison with earlier windows need not lower


@dataclass(frozen=True)
class Mean:
    """A mean with its error, as sums that add up.

    >>> found = Mean.of(torch.tensor([1.0, 3.0])) + Mean.of(torch.tensor([2.0]))
    >>> found.count, found.value, round(found.variance, 2)
    (3, 2.0, 0.33)
    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, values_B: Tensor) -> Mean:
        exact_B = values_B.double()
        return cls(len(exact_B), float(exact_B.sum()), float(exact_B.square().sum()))

    def __add__(self, other: Mean) -> Mean:
        return Mean(
            self.count + other.count, self.total + other.total, self.squares + other.squares
        )

    @property
    def value(self) -> float:
        return self.total / self.count if self.count else math.nan

    @property
    def variance(self) -> float:
        """Of the mean."""
        if self.count < 2:
            return math.inf
        spread = self.squares / self.count - self.value**2
        return max(0.0, spread) / (self.count - 1)


Window = tuple[Mean, Mean]  # of the losses that would be kept, and of the others


class Arrivals:
    """Losses of new samples by the half of their batch that a scorer puts them in, by windows."""

    def __init__(self) -> None:
        self.windows: dict[int, Window] = {}

    def add(self, step: int, scores_B: Tensor, losses_B: Tensor, new_B: Tensor | None) -> None:
        """Take in a batch before it is trained.

        Args:
            step: how many came before it.
            scores_B: by which one in two of it would be kept.
            losses_B: exact ones.
            new_B: which of its samples come for the first time; None where all do.
        """
        window = window_of(step)
        scores_B, losses_B = scores_B.cpu(), losses_B.cpu()
        sound_B = losses_B.isfinite() & scores_B.isfinite()
        if window is None or int(sound_B.sum()) < 4:
            return
        kept_B = torch.zeros_like(sound_B)
        ranked_B = scores_B.masked_fill(~sound_B, -math.inf).argsort(descending=True, stable=True)
        kept_B[ranked_B[: int(sound_B.sum()) // 2]] = True
        counted_B = sound_B if new_B is None else sound_B & new_B.cpu()
        kept, rest = self.windows.get(window, (Mean(), Mean()))
        self.windows[window] = (
            kept + Mean.of(losses_B[counted_B & kept_B]),
            rest + Mean.of(losses_B[counted_B & ~kept_B]),
        )

    def recent(self, step: int) -> Progress | None:
        """Progress in the last window that is over, from the one before it or, where that says too
        little, from earlier ones."""
        now = window_of(step)
        over = sorted(
            (number, means)
            for number, means in self.windows.items()
            if (now is None or number < now) and min(one.count for one in means) >= FEWEST // 2
        )
        if len(over) < 2:
            return None
        found = None
        for _, before in reversed(over[:-1]):
            found = _between(before, over[-1][1])
            if found.error <= SETTLED:
                break
        return found

    @classmethod
    def joined(cls, parts: Iterable[Arrivals]) -> Arrivals:
        """What all ranks have seen together."""
        whole = cls()
        for part in parts:
            for number, (kept, rest) in part.windows.items():
                known = whole.windows.get(number, (Mean(), Mean()))
                whole.windows[number] = known[0] + kept, known[1] + rest
        return whole

    def state_dict(self) -> dict[str, Any]:
        return {
            str(number): [*astuple(kept), *astuple(rest)]
            for number, (kept, rest) in self.windows.items()
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        found = Plain(state, "the autopilot's new samples")
        windows = {}
        for name in found:
            numbers = found.numbers(name, length=6)
            if not name.isdecimal() or min(numbers[0], numbers[3]) < 0:
                found.refuse(name, "the sums of a window")
            kept, rest = (
                Mean(int(n), float(total), float(squares))
                for n, total, squares in (numbers[:3], numbers[3:])
            )
            windows[int(name)] = kept, rest
        self.windows = windows


def window_of(step: int) -> int | None:
    """The window that a step belongs to; None before the first.

    >>> [window_of(step) for step in (0, 49, 50, 99, 100, 199, 200, 400)]
    [None, None, 0, 0, 1, 1, 2, 3]
    """
    return None if step < FIRST else (step // FIRST).bit_length() - 1


def _between(before: Window, after: Window) -> Progress:
    kept, rest = ((then.value - now.value) / 2 for then, now in zip(before, after, strict=True))
    errors = [(then.variance + now.variance) / 4 for then, now in zip(before, after, strict=True)]
    return Progress(kept, rest, *errors)
