"""Iterating over a loader of candidates, and resuming in the middle of it."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from sifting import batch as batches

if TYPE_CHECKING:
    from sifting.sifter import Sifter


class SiftedLoader:
    """The batches to train on, drawn from a loader of candidates.

    One candidate batch gives one batch of its kept samples; while nothing is selected (warm-up,
    after `stop_step`, between `every`), it gives all its samples in batches of the kept size.
    Made by calling a `Sifter` on a loader; it can be iterated once an epoch.
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
        sifter = self.sifter
        sizes = self._sizes()
        done = sifter.position if sifter.resuming else None
        skipped = int(done["batches"]) if done else 0
        pieces = int(done["pieces"]) if done else 0
        if pieces:  # the warm-up batch that was left half-trained
            start = sifter.step - pieces
            total = sifter.schedule.steps(
                sizes[skipped:],
                step=start,
                batch=sifter.batches_met - (start >= sifter.schedule.warmup_steps),
            )
            return total - pieces
        return sifter.schedule.steps(sizes[skipped:], step=sifter.step, batch=sifter.batches_met)

    def _sizes(self) -> list[int]:
        """Sizes of the candidate batches of one epoch."""
        if isinstance(self.loader, Sequence):
            return [batches.batch_size(candidates) for candidates in self.loader]
        if not isinstance(self.loader, Sized):
            raise TypeError(
                f"a {type(self.loader).__name__} has no length, so neither has what is sifted from it"
            )
        count = len(self.loader)
        size = getattr(self.loader, "batch_size", None)
        if not isinstance(size, int):
            return [1 << 20] * count  # any size that keep divides gives the same number of pieces
        sizes = [size] * count
        source = getattr(self.loader, "sampler", None)
        samples = len(source) if isinstance(source, Sized) else None
        if samples is not None and count and not getattr(self.loader, "drop_last", False):
            sizes[-1] = samples - size * (count - 1) or size
        return sizes

    def __iter__(self) -> Iterator[Any]:
        sifter = self.sifter
        self._length = self._count() if isinstance(self.loader, Sized) else None
        skip = sifter.position if sifter.resuming else None
        sifter.resuming = False
        source, position = _order(self.loader, skip)
        index = int(skip["batches"]) if skip else 0
        done_pieces = int(skip["pieces"]) if skip else 0
        position.update(batches=index, pieces=done_pieces)
        sifter.position = position
        meter = sifter.meter
        try:
            while True:
                begin = time.perf_counter()
                if not done_pieces:
                    position["fetch"] = torch.get_rng_state()
                try:
                    candidates = next(source)
                except StopIteration:
                    break
                finally:
                    meter.seconds["loading"] += time.perf_counter() - begin
                for place, piece in self._pieces(candidates, done_pieces):
                    position.update(batches=index + (place == 0), pieces=place)
                    meter.counts["steps"] += 1
                    meter.counts["samples_trained"] += batches.batch_size(piece)
                    with self._hooked():
                        begin = time.perf_counter()
                        yield piece
                        meter.seconds["between"] += time.perf_counter() - begin
                done_pieces = 0
                index += 1
            sifter.position = None
        finally:
            self._length = None

    def _pieces(self, candidates: Any, done: int) -> Iterator[tuple[int, Any]]:
        """What is trained of one candidate batch, with the place to resume at: 0 after the last."""
        sifter = self.sifter
        size = batches.batch_size(candidates)
        step = sifter.step - done
        schedule, meter = sifter.schedule, sifter.meter
        first = meter.counts["selections"] == 0
        fresh = done == 0
        met = sifter.batches_met - (not fresh and step >= schedule.warmup_steps)
        if fresh:
            meter.counts["candidates_seen"] += size
            sifter.batches_met += step >= schedule.warmup_steps
        if schedule.sifts(step=step, batch=met) and (size > 1 or first):
            yield 0, sifter.select(candidates).batch
            return
        sifter.last = None
        pieces = batches.split(candidates, schedule.count(step=step, size=size))
        for place, piece in enumerate(pieces[done:], start=done + 1):
            yield place % len(pieces), piece

    @contextmanager
    def _hooked(self) -> Iterator[None]:
        """Listen to the model's forward while the user's step runs."""
        handle = self.sifter.model.register_forward_hook(self.sifter.read_training_forward)
        try:
            yield
        finally:
            handle.remove()


def _order(
    loader: Iterable[Any], skip: dict[str, Any] | None
) -> tuple[Iterator[Any], dict[str, Any]]:
    """An iterator over the loader, moved on to where it was left, and the state it started from.

    A shuffling loader draws its order from its generator, or else from torch's global stream,
    when an epoch starts. To resume, that draw is made again from the same state; the global
    stream is then put back to where the user has it now.
    """
    generators = {
        name: generator
        for name, owner in (("loader", loader), ("sampler", getattr(loader, "sampler", None)))
        if isinstance(generator := getattr(owner, "generator", None), torch.Generator)
    }
    if skip is None:
        started: dict[str, Any] = {"global": torch.get_rng_state()}
        started.update({name: g.get_state() for name, g in generators.items()})
        return iter(loader), started
    here = torch.get_rng_state()
    torch.set_rng_state(skip["global"].cpu())
    for name, generator in generators.items():
        if name in skip:
            generator.set_state(skip[name].cpu())
    source = iter(loader)
    for passed in range(int(skip["batches"])):
        if next(source, source) is source:
            raise ValueError(
                f"cannot resume: the loader ended after {passed} batches, but {skip['batches']} had been "
                "used; give the loader that the state was saved with"
            )
    if skip["pieces"]:
        # a batch left half-trained is fetched again just as it was the first time
        if skip["batches"]:
            torch.set_rng_state(skip["fetch"].cpu())
        source = itertools.chain([next(source)], source)
    torch.set_rng_state(here)
    return source, {name: skip[name] for name in skip if name not in ("batches", "pieces")}
