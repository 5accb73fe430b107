"""How many candidates a trained batch needs, how long epochs are, what goes into a log."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from sifting.measure.meter import Stats
from sifting.select.schedule import Schedule

SHOWN = ("rho_approx", "rho_explored", "recall", "rank_correlation", "misclassified")


def candidate_count(trained: int, keep: float | Callable[[int], float], *, name: str) -> int:
    """Candidates to draw so that exactly `trained` of them are kept.

    >>> candidate_count(32, 0.5, name="batch_size"), candidate_count(9, 0.3, name="batch_size")
    (64, 30)

    Args:
        trained: samples in a training batch.
        keep: the sifter's.
        name: what the user calls `trained`, for the message where it does not divide.
    """
    if callable(keep):
        raise ValueError(
            f"keep={keep!r} is a function of the step, but the trained batch ({name}={trained}) has one "
            "size: give a number, or train in a loop of your own over sifter(loader)"
        )
    share = Fraction(keep).limit_denominator(1000)
    if trained % share.numerator:
        below = trained - trained % share.numerator
        nearest = [n for n in (below, below + share.numerator) if n > 0]
        raise ValueError(
            f"{name}={trained} is trained, so keep={keep} would have to draw {trained / keep:.2f} "
            f"candidates: set {name} to {' or '.join(map(str, nearest))}, or keep to 1/2 or 1/4"
        )
    return trained // share.numerator * share.denominator


@dataclass(frozen=True)
class Epoch:
    """One pass over the candidates.

    Attributes:
        steps: training batches it gives.
        samples: samples in them.
    """

    steps: int
    samples: int


class Epochs:
    """Every epoch's length, which is not the same for all where warm-up trains every candidate.

    >>> epochs = Epochs(Schedule(keep=0.5, warmup_steps=4), [8] * 10, accumulation=2)
    >>> [epochs[e].steps for e in range(3)], epochs.updates(0), epochs.total(2)
    ([12, 10, 10], 6, 11)
    >>> epochs.locate(8)
    (1, 2)

    Args:
        schedule: the sifter's.
        sizes: sizes of the candidate batches of an epoch.
        step: training batches that the sifter has handed out before.
        batch: candidate batches that it has met since warm-up ended.
        accumulation: training batches to an optimizer update.
    """

    def __init__(
        self,
        schedule: Schedule,
        sizes: Sequence[int],
        *,
        step: int = 0,
        batch: int = 0,
        accumulation: int = 1,
    ) -> None:
        self.schedule, self.sizes, self.accumulation = schedule, sizes, accumulation
        self._step, self._batch = step, batch
        self._known: list[Epoch] = []

    def __getitem__(self, epoch: int) -> Epoch:
        while len(self._known) <= epoch:
            self._known.append(self._next())
        return self._known[epoch]

    def _next(self) -> Epoch:
        schedule = self.schedule
        steady = schedule.every == 1 and schedule.stop_step is None
        if steady and self._known and self._step - self._known[-1].steps >= schedule.warmup_steps:
            return self._known[-1]
        start, samples = self._step, 0
        walk = schedule.walk(self.sizes, step=self._step, batch=self._batch)
        for steps, trained in walk:
            self._batch += self._step >= schedule.warmup_steps
            self._step += steps
            samples += trained
        return Epoch(self._step - start, samples)

    def updates(self, epoch: int) -> int:
        """Optimizer updates of an epoch, the last of which may have fewer batches."""
        return max(1, -(-self[epoch].steps // self.accumulation))

    def total(self, epochs: float) -> int:
        """Optimizer updates in so many epochs; a part of one is rounded up."""
        whole = math.floor(epochs)
        part = epochs - whole
        total = sum(self.updates(epoch) for epoch in range(whole))
        return total + (math.ceil(part * self.updates(whole)) if part > 0 else 0)

    def samples(self, epochs: float) -> float:
        """Samples trained in so many epochs."""
        whole = math.floor(epochs)
        part = epochs - whole
        total = float(sum(self[epoch].samples for epoch in range(whole)))
        return total + (part * self[whole].samples if part > 0 else 0)

    def locate(self, update: int) -> tuple[int, int]:
        """The epoch that this many updates lead into, and how many of them are of that epoch."""
        epoch = 0
        while update >= self.updates(epoch):
            update -= self.updates(epoch)
            epoch += 1
        return epoch, update


def loggable(stats: Stats, prefix: str = "sift_") -> dict[str, float]:
    """The figures of a summary that a logger can plot; those not measured yet are left out."""
    found = {name: stats[name] for name in SHOWN if stats[name] is not None}
    found.update(
        scoring_share=stats.scoring_share,
        candidates_seen=stats.candidates_seen,
        samples_trained=stats.samples_trained,
    )
    return {f"{prefix}{name}": value for name, value in found.items()}
