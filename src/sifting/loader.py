"""Iterating over a loader of candidates, and resuming in the middle of it."""

from __future__ import annotations

import itertools
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from sifting.data import batch as batches
from sifting.rng import Streams

if TYPE_CHECKING:
    from sifting.sifter import Sifter

DONE = ("batches", "pieces", "samples", "candidates", "ranks")  # what a place says of the past


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
        sifter = self.sifter
        try:
            self._length = self._count()
        except TypeError:  # no length can be told, which only matters to who asks for it
            self._length = None
        skip = sifter.position if sifter.resuming else None
        sifter.resuming = False
        source, position = _order(self.loader, skip)
        first = skip is None and sifter.meter.counts["candidates_seen"] == 0
        index = int(skip["batches"]) if skip else 0
        done_pieces = int(skip["pieces"]) if skip else 0
        samples = int(skip["samples"]) if skip else 0
        position.update(batches=index, pieces=done_pieces, samples=samples)
        sifter.position = position
        meter = sifter.meter
        try:
            while True:
                begin = time.perf_counter()
                if not done_pieces:
                    position["before"] = position.get("fetch")
                    position["fetch"] = Streams.now()
                try:
                    candidates = next(source)
                except StopIteration:
                    break
                finally:
                    meter.seconds["loading"] += time.perf_counter() - begin
                if first:
                    self._check(candidates)
                    first = False
                sifter.position = position  # that of the loader used last
                for place, piece in self._pieces(candidates, done_pieces):
                    position.update(batches=index + (place == 0), pieces=place)
                    if place == 0:
                        position["samples"] += batches.batch_size(candidates)
                    meter.counts["steps"] += 1
                    sifter.hand_out(piece)
                    meter.counts["samples_trained"] += sifter.handed
                    with self._step():
                        yield piece
                done_pieces = 0
                index += 1
            if sifter.position is position:
                sifter.position = None
        finally:
            self._length = None

    def _pieces(self, candidates: Any, done: int) -> Iterator[tuple[int, Any]]:
        """What is trained of one candidate batch, with the place to resume at: 0 after the last."""
        sifter = self.sifter
        size = batches.batch_size(candidates)
        step = sifter.step - done
        schedule, meter = sifter.schedule, sifter.meter
        fresh = done == 0
        met = sifter.batches_met - (not fresh and step >= schedule.warmup_steps)
        if fresh:
            meter.counts["candidates_seen"] += size
            sifter.batches_met += step >= schedule.warmup_steps
            assert sifter.position is not None
            sifter.position["counted"] = int(step >= schedule.warmup_steps)
        if schedule.sifts(step=step, batch=met) and (size > 1 or sifter.scope == "global"):
            yield 0, sifter.sift(candidates, size).batch
            return
        sifter.last = None
        pieces = batches.split(candidates, schedule.count(step=step, size=size))
        for place, piece in enumerate(pieces[done:], start=done + 1):
            yield place % len(pieces), piece

    def _check(self, candidates: Any) -> None:
        """What cannot work should fail on the first batch, not when warm-up ends."""
        sifter = self.sifter
        keep = sifter.schedule.keep
        if not callable(keep) and keep == 1:
            return  # the plain loop
        size = batches.batch_size(candidates)
        if size < 2:
            raise ValueError(
                f"a candidate batch of {size} leaves nothing to choose from: let the loader yield 1/keep "
                "times the batch you train on"
            )
        sifter.check(candidates)

    def _step(self) -> AbstractContextManager[None]:
        """What is open while the user's step runs: here, from one batch to the next."""
        return listening(self.sifter, self.sifter.model)


@contextmanager
def listening(sifter: Sifter, model: nn.Module) -> Iterator[None]:
    """Time the user's step, and listen to the model's forward in it."""
    handle = model.register_forward_hook(Listener(sifter))
    try:
        with sifter.meter.time("between", sifter.device):
            yield
        sifter.end_step()
    finally:
        handle.remove()


class Listener:
    """Forward hook that reads the user's training forward.

    It does not keep the sifter alive, and is mute in a copy: a model that is deep-copied or
    pickled in the middle of a step takes no sifter with it.
    """

    def __init__(self, sifter: Sifter | None = None) -> None:
        self._sifter = None if sifter is None else weakref.ref(sifter)

    def __call__(self, module: Any, args: Any, output: Any) -> None:
        sifter = None if self._sifter is None else self._sifter()
        if sifter is not None and not torch.compiler.is_compiling():
            sifter.read_training_forward(output)

    def __reduce__(self) -> tuple[type[Listener], tuple[()]]:
        return Listener, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> Listener:
        return Listener()


def _sized(*sources: Any) -> int | None:
    """Length of the first that has one."""
    for source in sources:
        if isinstance(source, Sized):
            return len(source)
    return None


def _order(
    loader: Iterable[Any], skip: dict[str, Any] | None
) -> tuple[Iterator[Any], dict[str, Any]]:
    """An iterator over the loader, moved on to where it was left, and the state it started from.

    A shuffling loader draws its order from its generator, or else from torch's global stream,
    when an epoch starts. To resume, that draw is made again from the same state; the global
    stream is then put back to where the user has it now. A loader that makes its batches from
    their numbers may have `fast_forward(count)`, after which its next iteration leaves out the
    first `count` of them; any other is iterated up to the place.
    """
    generators = _generators(loader)
    if skip is None:
        started: dict[str, Any] = {"start": Streams.now(), "warm": int(_warm(loader))}
        started.update({name: generator.get_state() for name, generator in generators.items()})
        return iter(loader), started
    here = Streams.now()
    if skip.get("warm") and not _warm(loader):
        iter(loader)  # workers that live on draw their seed only when they are first started
    skip["start"].restore()
    for name, generator in generators.items():
        if name in skip:
            generator.set_state(skip[name].cpu())
    forward = getattr(loader, "fast_forward", None)
    if callable(forward):
        forward(int(skip["batches"]))
        source = iter(loader)
        if "ranks" in skip:
            _check_samples(skip, int(skip["batches"]) * int(getattr(loader, "batch_size", 0)))
        here.restore()
        return source, {name: skip[name] for name in skip if name not in DONE}
    source = iter(loader)
    # A batch left half-trained is fetched again just as it was the first time. So is the last
    # one used, and for a loader that looks ahead by a batch (Accelerate's), the one before.
    last = int(skip["batches"]) - (not skip["pieces"])
    replayed = {last - 1: skip.get("before"), last: skip["fetch"]}
    samples = 0
    for passed in range(last + 1):
        if passed and replayed.get(passed) is not None:
            replayed[passed].restore()
        candidates = next(source, source)
        if candidates is source:
            raise ValueError(
                f"cannot resume: the loader ended after {passed} batches, but {last + 1} had been "
                "used; give the loader that the state was saved with"
            )
        if "ranks" in skip and passed < skip["batches"]:
            samples += batches.batch_size(candidates)
    if "ranks" in skip:
        _check_samples(skip, samples)
    if skip["pieces"]:
        source = itertools.chain([candidates], source)
    here.restore()
    return source, {name: skip[name] for name in skip if name not in DONE}


def _check_samples(skip: dict[str, Any], samples: int) -> None:
    if samples != skip["samples"]:
        raise ValueError(
            f"cannot resume on {skip['ranks']} ranks: {skip['candidates']} candidates had been used in "
            f"{skip['batches']} batches, and that many batches of this loader hold {samples} on this rank, "
            f"not {skip['samples']}. Keep the number of candidates that all ranks together draw a step"
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
