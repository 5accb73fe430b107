"""Iterating over a loader of candidates, and resuming in the middle of it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from sifting.chooser import Step
from sifting.data import batch as batches
from sifting.data.position import Position
from sifting.rng import RandomState

if TYPE_CHECKING:
    from sifting.sifter import Sifter


class Cursor:
    """Where a sifter is in its loader, between the loaders that are made of it.

    Attributes:
        position: in the epoch that is iterated; None between epochs.
        resuming: whether the next iteration goes on from there instead of beginning anew.
        batches_met: candidate batches since warm-up ended.
    """

    def __init__(self) -> None:
        self.position: Position | None = None
        self.resuming = False
        self.batches_met = 0

    def restart(self) -> None:
        """The next iteration begins an epoch anew."""
        self.position, self.resuming = None, False

    def state_dict(self) -> dict[str, Any]:
        position = None if self.position is None else self.position.to_plain()
        return {"batches_met": self.batches_met, "position": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        saved = state["position"]
        self.batches_met = int(state["batches_met"])
        self.position = None if saved is None else Position.from_plain(saved)
        self.resuming = self.position is not None

    @staticmethod
    def divided(states: Sequence[Mapping[str, Any]], rank: int, world: int) -> dict[str, Any]:
        """The state that one of `world` ranks goes on with, from those of the ranks that saved."""
        own = states[rank % len(states)]
        met = int(states[0]["batches_met"])
        if own["position"] is None:
            return {"batches_met": met, "position": None}
        places = [Position.from_plain(state["position"]) for state in states]
        place = Position.from_plain(own["position"])
        if place.pieces:  # trained again from its start, and so met again
            met -= place.counted
        return {"batches_met": met, "position": place.divided(places, rank, world).to_plain()}


class SiftedLoader:
    """The batches to train on, drawn from a loader of candidates.

    One candidate batch gives one batch of its kept samples; while nothing is selected (warm-up,
    after `stop_step`, between `every`), it gives all its samples in batches of the kept size.
    Made by calling a `Sifter` on a loader; it is iterated once an epoch, one loader at a time.
    """

    def __init__(self, sifter: Sifter, loader: Iterable[Any]) -> None:
        self.sifter = sifter
        self.loader = loader
        self._length: int | None = None  # of the epoch that is being iterated

    def __len__(self) -> int:
        """Batches that an iteration gives: the rest of the epoch, where it is resumed."""
        if self._length is not None:
            return self._length
        return self._count()

    def _count(self) -> int:
        sifter, cursor = self.sifter, self.sifter.cursor
        schedule, sizes = sifter.schedule, self._sizes()
        done = cursor.position if cursor.resuming else None
        if done is None:
            return schedule.steps(sizes, step=sifter.step, batch=cursor.batches_met)
        # a warm-up batch that was left half-trained is walked through from its start
        start = sifter.step - done.pieces
        met = cursor.batches_met - (done.pieces > 0 and start >= schedule.warmup_steps)
        return schedule.steps(sizes[done.batches :], step=start, batch=met) - done.pieces

    def _sizes(self) -> list[int]:
        """Sizes of the candidate batches of one epoch."""
        if isinstance(self.loader, Sequence):
            return [batches.batch_size(candidates) for candidates in self.loader]
        if not isinstance(self.loader, Sized):
            raise TypeError(
                f"a {type(self.loader).__name__} has no length, so neither has what is sifted from it"
            )
        count = len(self.loader)
        schedule = self.sifter.schedule
        if (
            self.sifter.step >= schedule.warmup_steps
            and schedule.every == 1
            and schedule.stop_step is None
        ):
            return [2] * count  # one batch each, whatever their sizes
        source: Any = self.loader
        size = getattr(source, "batch_size", None)
        if size is None:
            source = getattr(source, "batch_sampler", None)
            size = getattr(source, "batch_size", None)
        samples = _sized(getattr(source, "sampler", None), getattr(self.loader, "dataset", None))
        if not isinstance(size, int) or samples is None:
            raise TypeError(
                f"the sizes of a {type(self.loader).__name__}'s batches cannot be told, so the number of "
                "batches cannot either while nothing is selected (warm-up, every, stop_step)"
            )
        sizes = [size] * count
        if count and not getattr(source, "drop_last", False):
            sizes[-1] = samples - size * (count - 1)
        return sizes

    def __iter__(self) -> Iterator[Any]:
        sifter, cursor, meter = self.sifter, self.sifter.cursor, self.sifter.meter
        try:
            self._length = self._count()
        except TypeError:  # no length can be told, which only matters to who asks for it
            self._length = None
        resumed = cursor.position if cursor.resuming else None
        cursor.resuming = False
        source, place = _start(self.loader, resumed)
        first = resumed is None and meter.counts["candidates_seen"] == 0
        cursor.position = place
        try:
            while True:
                if not place.pieces:
                    place = replace(place, before=place.fetch, fetch=RandomState.now())
                begin = time.perf_counter()
                try:
                    candidates = next(source)
                except StopIteration:
                    break
                finally:
                    meter.seconds["loading"] += time.perf_counter() - begin
                if first:
                    self._check(candidates)
                    first = False
                size = batches.batch_size(candidates)
                if not place.pieces:
                    place = self._meet(place, size)
                for pieces, step, piece in self._pieces(candidates, size, place):
                    place = replace(place, pieces=pieces)
                    if not pieces:
                        place = replace(
                            place, batches=place.batches + 1, samples=place.samples + size
                        )
                    cursor.position = place  # that of the loader used last
                    meter.counts["steps"] += 1
                    meter.counts["samples_trained"] += step.size
                    sifter.observer.hand_out(step, piece)
                    with self._step():
                        yield piece
            if cursor.position is place:
                cursor.position = None
        finally:
            self._length = None

    def _meet(self, place: Position, size: int) -> Position:
        """Count a candidate batch that is begun."""
        sifter, cursor = self.sifter, self.sifter.cursor
        counted = sifter.step >= sifter.schedule.warmup_steps
        sifter.meter.counts["candidates_seen"] += size
        cursor.batches_met += counted
        return replace(place, counted=counted)

    def _pieces(
        self, candidates: Any, size: int, place: Position
    ) -> Iterator[tuple[int, Step, Any]]:
        """What is trained of one candidate batch, with the pieces done then: 0 after the last."""
        sifter, schedule = self.sifter, self.sifter.schedule
        step = sifter.step - place.pieces
        met = sifter.cursor.batches_met - place.counted
        if schedule.sifts(step=step, batch=met) and (size > 1 or sifter.chooser.together):
            chosen = sifter.chooser(candidates, size)
            assert chosen.selection is not None
            yield 0, chosen, chosen.selection.batch
            return
        pieces = batches.split(candidates, schedule.count(step=step, size=size))
        for number, piece in enumerate(pieces[place.pieces :], start=place.pieces + 1):
            yield number % len(pieces), Step(batches.batch_size(piece)), piece

    def _check(self, candidates: Any) -> None:
        """What cannot work should fail on the first batch, not when warm-up ends."""
        keep = self.sifter.schedule.keep
        if not callable(keep) and keep == 1:
            return  # the plain loop
        size = batches.batch_size(candidates)
        if size < 2:
            raise ValueError(
                f"a candidate batch of {size} leaves nothing to choose from: let the loader yield 1/keep "
                "times the batch you train on"
            )
        self.sifter.chooser.check(candidates)

    def _step(self) -> AbstractContextManager[None]:
        """What is open while the user's step runs: here, from one batch to the next."""
        return self.sifter.observer.training(self.sifter.model)


def _sized(*sources: Any) -> int | None:
    """Length of the first that has one."""
    for source in sources:
        if isinstance(source, Sized):
            return len(source)
    return None


def _start(loader: Iterable[Any], resumed: Position | None) -> tuple[Iterator[Any], Position]:
    """An iterator over the loader, moved on to where it was left, and its position.

    A shuffling loader draws its order from its generator, or else from torch's global stream,
    when an epoch starts. To resume, that draw is made again from the same state; the global
    stream is then put back to where the user has it now. A loader that makes its batches from
    their numbers may have `fast_forward(count)`, after which its next iteration leaves out the
    first `count` of them; any other is iterated up to the place.
    """
    generators = _generators(loader)
    if resumed is None:
        states = {name: generator.get_state() for name, generator in generators.items()}
        place = Position(RandomState.now(), states, _warm(loader))
        return iter(loader), place
    here = RandomState.now()
    if resumed.warm and not _warm(loader):
        iter(loader)  # workers that live on draw their seed only when they are first started
    resumed.start.restore()
    for name, generator in generators.items():
        if name in resumed.generators:
            generator.set_state(resumed.generators[name].cpu())
    forward = getattr(loader, "fast_forward", None)
    if callable(forward):
        forward(resumed.batches)
        source = iter(loader)
        _check_samples(resumed, resumed.batches * int(getattr(loader, "batch_size", 0)))
    else:
        source = _replayed(loader, resumed)
    here.restore()
    return source, replace(resumed, candidates=None, ranks=None)


def _replayed(loader: Iterable[Any], resumed: Position) -> Iterator[Any]:
    """A loader iterated up to a place.

    A batch left half-trained is fetched again just as it was the first time. So is the last one
    used, and for a loader that looks ahead by a batch (Accelerate's), the one before.
    """
    source = iter(loader)
    last = resumed.batches - (not resumed.pieces)
    states = {last - 1: resumed.before, last: resumed.fetch}
    samples = 0
    for passed in range(last + 1):
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
            samples += batches.batch_size(candidates)
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


def _generators(loader: Any) -> dict[str, torch.Generator]:
    """The generators that a loader, its samplers and theirs draw from, by where they are."""
    found: dict[str, torch.Generator] = {}
    open_nodes = [("loader", loader)]
    while open_nodes:
        path, node = open_nodes.pop(0)
        generator = getattr(node, "generator", None)
        if isinstance(generator, torch.Generator) and generator not in found.values():
            found[path] = generator
        for name in ("batch_sampler", "sampler"):
            child = getattr(node, name, None)
            if child is not None and path.count(".") < 3:
                open_nodes.append((f"{path}.{name}", child))
    return found
