"""Candidates as a loader's batches have them: one batch, one choice (`draws="batch"`)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from typing import Any

from sifting.data.generators import restore_generators, states_of
from sifting.data.marks import Marks, go_to_mark, going_on
from sifting.data.position import Position
from sifting.data.samples import Samples
from sifting.data.stateful import forget
from sifting.rng import RandomState
from sifting.selection.schedule import Schedule


class BatchSource:
    """Gives each batch of a loader as candidates.

    One candidate batch gives one training batch of its kept samples; while nothing is selected
    (warm-up, after `stop_step`, between `every`), it gives all its samples in batches of the kept
    size.

    Attributes:
        place: in the epoch, after the training batch handed out last.
    """

    def __init__(
        self, loader: Iterable[Any], schedule: Schedule, samples: Samples | None = None
    ) -> None:
        self.loader, self.schedule = loader, schedule
        self.samples = Samples() if samples is None else samples
        self.place = Position(RandomState.now())
        self._marks = Marks(loader)

    def steps(self, resumed: Position | None, *, step: int, met: int) -> int:
        """Training batches of an epoch, or of the rest of it.

        Args:
            resumed: the place that it continues from; None for the beginning.
            step: training batches handed out before.
            met: candidate batches since warm-up ended.
        """
        sizes = self._sizes(step)
        if resumed is None:
            return self.schedule.steps(sizes, step=step, batch=met)
        # a warm-up batch that was left half-trained is walked through from its start
        start = step - resumed.pieces
        met -= resumed.pieces > 0 and start >= self.schedule.warmup_steps
        rest = sizes[resumed.batches :]
        return self.schedule.steps(rest, step=start, batch=met) - resumed.pieces

    def _sizes(self, step: int) -> list[int]:
        """Sizes of the candidate batches of one epoch."""
        loader: Any = self.loader
        if isinstance(loader, Sequence):
            return [self.samples.size(candidates) for candidates in loader]
        if not isinstance(loader, Sized):
            raise TypeError(
                f"a {type(loader).__name__} has no length, so neither has what is sifted from it"
            )
        count, schedule = len(loader), self.schedule
        if step >= schedule.warmup_steps and schedule.every == 1 and schedule.stop_step is None:
            return [2] * count  # one batch each, whatever their sizes
        source: Any = loader
        size = getattr(source, "batch_size", None)
        if size is None:
            source = getattr(source, "batch_sampler", None)
            size = getattr(source, "batch_size", None)
        owners = (getattr(source, "sampler", None), getattr(loader, "dataset", None))
        samples = next((len(owner) for owner in owners if isinstance(owner, Sized)), None)
        if not isinstance(size, int) or samples is None:
            raise TypeError(
                f"the sizes of a {type(loader).__name__}'s batches cannot be determined, so the number of "
                "batches cannot either while nothing is selected (warm-up, every, stop_step)"
            )
        sizes = [size] * count
        if count and not getattr(source, "drop_last", False):
            sizes[-1] = samples - size * (count - 1)
        return sizes

    def start(self, resumed: Position | None) -> Iterator[tuple[Any, int, Position]]:
        """Iterate: candidates, how many, and the place, with `pieces` where they are half-trained."""
        source, self.place = _start(self.loader, resumed, self.samples)
        self._marks.last = self.place.mark
        return self._read(source)

    def _read(self, source: Iterator[Any]) -> Iterator[tuple[Any, int, Position]]:
        while True:
            if not self.place.pieces:
                self.place = replace(self.place, before=self.place.fetch, fetch=RandomState.now())
                self._marks.last = self._marks.now(1, self.place.batches, self.place.batches)
            candidates = next(source, source)
            if candidates is source:
                return
            yield candidates, self.samples.size(candidates), self.place

    def met(self, counted: bool) -> Position:
        """Take note that a candidate batch is begun."""
        self.place = replace(self.place, counted=counted)
        return self.place

    def used(self, size: int) -> Position:
        """Take note that a candidate batch is used up."""
        place = self.place
        count = place.batches + 1
        mark = self._marks.after(1, count, count)
        samples = place.samples + size
        self.place = replace(place, batches=count, pieces=0, samples=samples, mark=mark)
        return self.place

    def pieces(self, candidates: Any, *, step: int, size: int) -> Iterator[tuple[Any, int]]:
        """All samples of a candidate batch in training batches, from the first not yet trained."""
        parts = self.samples.split(candidates, self.schedule.count(step=step, size=size))
        done = self.place.pieces
        for number, part in enumerate(parts[done:], start=done + 1):
            if number == len(parts):
                self.used(size)
            else:
                self.place = replace(self.place, pieces=number, mark=self._marks.last)
            yield part, self.samples.size(part)


def _start(
    loader: Iterable[Any], resumed: Position | None, samples: Samples
) -> tuple[Iterator[Any], Position]:
    """An iterator over the loader, moved on to where it was left, and its position.

    A shuffling loader draws its order from its generator, or else from torch's global stream,
    when an epoch starts. To resume, that draw is made again from the same state; the global
    stream is then put back to where the user has it now. torchdata's loaders continue by their own
    state. A loader that makes its batches from their numbers may have `fast_forward(count)`, after
    which its next iteration leaves out the first `count` of them; any other is iterated up to the
    place.
    """
    if resumed is None:
        states = states_of(loader)
        place = Position(RandomState.now(), states, _warm(loader))
        return iter(loader), place
    here = RandomState.now()
    forget(loader)
    if resumed.mark is not None:
        go_to_mark(loader, resumed.mark)
    elif resumed.warm and not _warm(loader):
        iter(loader)  # workers that live on draw their seed only when they are first started
    resumed.start.restore()
    restore_generators(loader, resumed.generators)
    forward = getattr(loader, "fast_forward", None)
    if callable(forward):
        forward(resumed.batches)
        source = iter(loader)
        _check_samples(resumed, resumed.batches * int(getattr(loader, "batch_size", 0)))
    else:
        source = _replayed(loader, resumed, samples)
    here.restore()
    return source, replace(resumed, candidates=None, ranks=None)


def _replayed(loader: Iterable[Any], resumed: Position, divided: Samples) -> Iterator[Any]:
    """A loader iterated up to a place.

    A batch left half-trained is fetched again just as it was the first time. So is the last one
    used, and for a loader that looks ahead by a batch (Accelerate's), the one before.
    """
    source = iter(loader)
    if resumed.mark is not None:
        source = going_on(loader, source)
    last = resumed.batches - (not resumed.pieces)
    states = {last - 1: resumed.before, last: resumed.fetch}
    samples = 0
    for passed in range(0 if resumed.mark is None else resumed.mark.taken, last + 1):
        state = states.get(passed)
        if passed and state is not None:
            state.restore()
        candidates = next(source, source)
        if candidates is source:
            raise ValueError(
                f"cannot resume: the loader ended after {passed} batches, but {last + 1} had been "
                "used; give the loader that the state was saved with"
            )
        if resumed.ranks is not None and passed < resumed.batches:
            samples += divided.size(candidates)
    _check_samples(resumed, samples)
    return itertools.chain([candidates], source) if resumed.pieces else source


def _check_samples(resumed: Position, samples: int) -> None:
    """Raise where another number of ranks does not draw as many candidates a step as before."""
    if resumed.ranks is not None and samples != resumed.samples:
        raise ValueError(
            f"cannot resume on {resumed.ranks} ranks: {resumed.candidates} candidates had been used in "
            f"{resumed.batches} batches, and that many batches of this loader hold {samples} on this rank, "
            f"not {resumed.samples}. Keep the number of candidates that all ranks together draw a step"
        )


def _warm(loader: Any) -> bool:
    """Whether a loader with persistent workers has started them."""
    return bool(getattr(loader, "persistent_workers", False) and getattr(loader, "_iterator", None))
