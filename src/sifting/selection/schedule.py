"""When to sift, and how much to keep: pure functions of the training step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass


def kept_count(keep: float, size: int) -> int:
    """How many of `size` candidates are kept: `keep * size` rounded up, so never 0.

    >>> [kept_count(0.5, n) for n in (64, 65, 1)], kept_count(0.01, 8)
    ([32, 33, 1], 1)

    Rounding up also means that splitting a batch into pieces of this size leaves no stray
    piece: 65 samples make 33 + 32, not 32 + 32 + 1.
    """
    if isinstance(keep, bool) or not isinstance(keep, int | float):
        raise TypeError(f"keep={keep!r}: give a number in (0, 1], or a function of the step")
    if not 0 < keep <= 1:
        raise ValueError(
            f"keep={keep!r} is not in (0, 1]: it is the share of candidates to train on"
        )
    return max(1, math.ceil(keep * size - 1e-9))


def candidate_count(trained: int, keep: float) -> int:
    """Candidates to draw so that `trained` of them are kept.

    >>> candidate_count(32, 0.5), candidate_count(9, 0.3), candidate_count(32, 0.3)
    (64, 30, 107)
    """
    return math.ceil(trained / keep - 1e-9)


@dataclass(frozen=True)
class Schedule:
    """When candidates are scored; otherwise they are all trained, in batches of the kept size.

    >>> s = Schedule(keep=0.5, warmup_steps=2)
    >>> s.sifts(step=0, batch=0), s.sifts(step=2, batch=1)
    (False, True)

    Args:
        keep: share of the candidates to train on, in (0, 1], or a function of the step.
        warmup_steps: training steps before the first selection.
        stop_step: the step from which nothing is selected any more.
        every: of each `every` candidate batches, the first is sifted.
    """

    keep: float | Callable[[int], float] = 0.5
    warmup_steps: int = 0
    stop_step: int | None = None
    every: int = 1

    def __post_init__(self) -> None:
        if not callable(self.keep):
            kept_count(self.keep, 1)
        for name, least in (("warmup_steps", 0), ("every", 1), ("stop_step", 1)):
            value = getattr(self, name)
            if name == "stop_step" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ValueError(f"{name}={value!r}: give a whole number of at least {least}")
        if self.stop_step is not None and self.stop_step <= self.warmup_steps:
            raise ValueError(
                f"stop_step={self.stop_step!r} leaves nothing to sift after "
                f"warmup_steps={self.warmup_steps}: make it larger, or None for no end"
            )

    def keep_at(self, step: int) -> float:
        """The share to keep at a step; a function's answer is checked each time."""
        if not callable(self.keep):
            return self.keep
        keep = self.keep(step)
        if not isinstance(keep, int | float) or not 0 < keep <= 1:
            raise ValueError(f"keep(step={step}) gave {keep!r}, which is not in (0, 1]")
        return float(keep)

    def sifts(self, *, step: int, batch: int | None = None) -> bool:
        """Whether the candidates of a step are scored.

        Args:
            step: training steps made before.
            batch: candidate batches met since warm-up ended; None where candidates are drawn for
                each step, so that steps are counted.
        """
        if batch is None:
            batch = step - self.warmup_steps
        if step < self.warmup_steps or (self.stop_step is not None and step >= self.stop_step):
            return False
        return self.keep_at(step) < 1 and batch % self.every == 0

    def count(self, *, step: int, size: int) -> int:
        """How many of `size` candidates are trained at once at this step."""
        return kept_count(self.keep_at(step), size)

    def candidates(self, *, step: int, size: int) -> int:
        """How many candidates are drawn for a step that trains `size` samples.

        >>> s = Schedule(keep=0.5, warmup_steps=1)
        >>> s.candidates(step=0, size=8), s.candidates(step=1, size=8)
        (8, 16)
        """
        return candidate_count(size, self.keep_at(step)) if self.sifts(step=step) else size

    def walk(
        self, sizes: Iterable[int], *, step: int = 0, batch: int = 0
    ) -> Iterator[tuple[int, bool]]:
        """For each candidate batch: how many training steps it makes, and whether it is sifted.

        >>> list(Schedule(keep=0.5, warmup_steps=1).walk([64, 64]))
        [(2, False), (1, True)]

        Args:
            sizes: of the candidate batches.
            step: training steps made before.
            batch: candidate batches met since warm-up ended.
        """
        for size in sizes:
            sifted = size > 1 and self.sifts(step=step, batch=batch)
            whole = sifted or size < 2
            steps = 1 if whole else -(-size // self.count(step=step, size=size))
            yield steps, sifted
            batch += step >= self.warmup_steps
            step += steps

    def steps(self, sizes: Iterable[int], *, step: int = 0, batch: int = 0) -> int:
        """Training steps that candidate batches of these sizes make, from a given step on.

        >>> Schedule(keep=0.5, warmup_steps=3).steps([64] * 10)
        12
        """
        return sum(steps for steps, _ in self.walk(sizes, step=step, batch=batch))
