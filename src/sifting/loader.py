"""Iterating over a loader: candidates in, batches to train on out, from any place of an epoch.

DataLoader over a map-style data set   `data.drawing`  candidates are drawn by index
any other iterable                     `data.pooling`  batches are joined until they suffice
draws="batch"                          `data.splitting`  each batch of the loader is the candidates
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import torch

from sifting.budget import tokens_in
from sifting.cursor import LoaderPlace, check_loader, check_place, choice_of
from sifting.data.accelerated import EpochEnd
from sifting.data.by_index import namer
from sifting.data.documents import nothing_to_choose
from sifting.data.drawing import IndexSource, samples_drawn
from sifting.data.lookahead import Lookahead
from sifting.data.pooling import PoolPosition, PoolSource
from sifting.data.position import DrawnStep, IndexPosition, Position
from sifting.data.splitting import BatchSource
from sifting.data.stateful import LOST, order_is_lost
from sifting.data.twin import draws_by_index
from sifting.measure.stopwatch import now
from sifting.rng import RandomState
from sifting.step import Step

if TYPE_CHECKING:
    from sifting.sifter import Sifter

T = TypeVar("T", bound=tuple[Any, ...])
# A training batch, what is known of it, and the place after it; first, None once all is begun.
ReadyBatch = tuple[Any, Step, LoaderPlace] | None


class SiftedLoader:
    """The batches to train on, drawn from a loader.

    Made by calling a `Sifter` on a loader; it is iterated once an epoch, one loader at a time.
    """

    def __init__(self, sifter: Sifter, loader: Iterable[Any]) -> None:
        check_loader(loader, sifted=isinstance(loader, SiftedLoader))
        self.sifter = sifter
        self.loader = loader
        self._source = self._make_source()
        self._length: int | None = None  # of the epoch that is being iterated

    def _make_source(self) -> IndexSource | PoolSource | BatchSource:
        sifter, whole = self.sifter, self.sifter.epoch == "steps"
        if sifter.draws == "batch":
            return BatchSource(self.loader, sifter.schedule, sifter.chooser.samples)
        if draws_by_index(self.loader):
            if not order_is_lost(self.loader):
                return IndexSource(self.loader, whole=whole)
            if sifter.exit.by_id and sifter.chooser.scorer.call.ids is None:
                raise ValueError(f"{sifter.exit!r} needs to know which sample is which, and {LOST}")
        samples = sifter.chooser.samples
        return PoolSource(self.loader, whole=whole, filling=sifter.filling, samples=samples)

    def __len__(self) -> int:
        """Batches that an iteration gives: the rest of the epoch, where it is resumed."""
        return self._count() if self._length is None else self._length

    def _count(self) -> int:
        sifter, cursor, source = self.sifter, self.sifter.cursor, self._source
        place = cursor.position if cursor.resuming else None
        if isinstance(source, BatchSource):
            assert place is None or isinstance(place, Position)
            return source.steps(place, step=sifter.step, met=cursor.batches_met)
        done = 0 if place is None else getattr(place, "steps", 0)
        if sifter.epoch == "steps":
            return len(source) - done
        return source.steps_of_a_pass(self._plan(sifter.step - done)) - done

    def _plan(self, before: int) -> Any:
        """From a step's number in the epoch and its size to how many candidates it has."""
        schedule = self.sifter.schedule
        return lambda number, size: schedule.candidates(step=before + number, size=size)

    def __iter__(self) -> Iterator[Any]:
        """Begun at once, as a `DataLoader` is; where an epoch is resumed, with its first batch."""
        at_once = not self.sifter.cursor.resuming
        batches = self._iterate(at_once)
        if at_once:
            next(batches)
        return batches

    def _iterate(self, at_once: bool) -> Iterator[Any]:
        sifter, cursor, meter = self.sifter, self.sifter.cursor, self.sifter.meter
        self._source = self._make_source()
        try:
            self._length = self._count()
        except TypeError:  # no length can be told, which only matters to who asks for it
            self._length = None
        resumed = cursor.position if cursor.resuming else None
        cursor.resuming = False
        check_place(resumed, type(self._source), self.loader, draws=sifter.draws)
        sifter.trained_in(sifter.model)  # it may have been sharded since
        self._check_lengths()
        if sifter.pilot is not None and sifter.pilot.trials is not None:
            sifter.pilot.trials.pieces.reads(self.loader)
        sifter.observer.end_owed()
        owner = None if sifter.beside is None else sifter.beside.open()
        source, place, end = self._handed(resumed), resumed, EpochEnd(self.loader)
        try:
            next(source)
            if at_once:
                yield
            if sifter.pilot is not None:
                sifter.pilot.passes += resumed is None
            while sifter.pilot is None or not sifter.pilot.account.ends():
                handed = next(source, None)
                if handed is None:
                    break
                batch, step, place = handed
                cursor.position = place  # that of the loader used last
                meter.counts["steps"] += 1
                meter.counts["samples_trained"] += step.size
                meter.counts["tokens_trained"] += tokens_in(batch)
                sifter.observer.hand_out(step, batch)
                with self._step(batch), end.step(place, self._length):
                    yield batch
            end.over()
            if cursor.position is place:
                cursor.position = None
        finally:
            self._length = None
            source.close()
            if sifter.beside is not None:
                sifter.beside.close(owner)

    def _check_lengths(self) -> None:
        """Raise, on all ranks that stay in step, where some have more batches than others."""
        ranks = self.sifter.chooser.scorer.ranks
        lengths = [] if ranks is None else ranks.gather(self._length)
        if len(set(lengths)) > 1:
            raise ValueError(
                f"the ranks have {', '.join(map(str, lengths))} batches of this epoch, and all have to "
                "take the same number of steps: give all the same number (DistributedSampler does, and "
                "Accelerate with even_batches=True)"
            )

    def _begun(self, start: Callable[[], Iterator[T]]) -> Lookahead[T]:
        """A source, begun; what was drawn ahead before a resume is drawn again, from the same streams."""
        beside = self.sifter.beside
        ahead = None if beside is None else beside.ahead
        if ahead is None or ahead.batch is not None:
            return Lookahead(self._timed(start()))
        here = RandomState.now()
        ahead.streams.restore()
        items = Lookahead(self._timed(start()))
        first: Any = items.peek()
        here.restore()
        if first is not None:
            ahead.batch = first[0]
        return items

    def _go_ahead(self, items: Lookahead[Any], batch: int | None = None) -> None:
        """Draw the candidates of the next step and begin to score them, before this one is trained.

        Not before something was selected and trained: until then this is the plain loop, and nothing
        is known of its autocast.

        Args:
            items: the source, whose items begin with the candidates.
            batch: number of the next candidate batch since warm-up, where they come as batches.
        """
        sifter = self.sifter
        beside, counts = sifter.beside, sifter.meter.counts
        if beside is None or not counts["selections"] or not counts["steps"]:
            return
        if not sifter.schedule.sifts(step=counts["steps"] + 1, batch=batch):
            return
        streams = RandomState.now()
        following = items.peek()
        if following is not None:
            beside.drawn(following[0], streams)
            with sifter.meter.time("scoring", sifter.device):
                beside.begin()

    def _handed(self, resumed: Any) -> Generator[ReadyBatch]:
        """Every training batch with what is known of it, its candidates counted and timed."""
        source = self._source
        if isinstance(source, BatchSource):
            yield from self._of_batches(source, resumed)
        elif isinstance(source, IndexSource):
            yield from self._of_indices(source, resumed)
        else:
            yield from self._of_pool(source, resumed)

    def _timed(self, source: Iterator[Any]) -> Iterator[Any]:
        """What a source gives, the waiting for it charged to loading.

        Choices made by IDs happen in there, and have a clock of their own.
        """
        seconds = self.sifter.meter.seconds
        while True:
            begin, scored = now(), seconds["scoring"]
            found = next(source, source)
            seconds["loading"] += now() - begin - (seconds["scoring"] - scored)
            if found is source:
                return
            yield found

    def _of_batches(self, source: BatchSource, resumed: Position | None) -> Iterator[ReadyBatch]:
        sifter, meter = self.sifter, self.sifter.meter
        first = resumed is None and meter.counts["candidates_seen"] == 0
        items = self._begun(lambda: source.start(resumed))
        yield None
        for candidates, size, place in items:
            if first:
                self._check(candidates, size)
                first = False
            if not place.pieces:
                counted = sifter.step >= sifter.schedule.warmup_steps
                self._see(candidates, size)
                sifter.cursor.batches_met += counted
                place = source.met(counted)
            step = sifter.step - place.pieces
            met = sifter.cursor.batches_met - place.counted
            sifts = sifter.schedule.sifts(step=step, batch=met)
            if sifts and (size > 1 or sifter.chooser.together is not None):
                made = sifter.chooser(candidates, size)
                assert made.selection is not None
                place = source.used(size)
                self._go_ahead(items, batch=sifter.cursor.batches_met)
                yield made.selection.batch, made, place
                continue
            for piece, count in source.pieces(candidates, step=step, size=size):
                yield piece, Step(count), source.place

    def _of_pool(self, source: PoolSource, resumed: PoolPosition | None) -> Iterator[ReadyBatch]:
        sifter, meter = self.sifter, self.sifter.meter
        before = sifter.step - (0 if resumed is None else resumed.steps)
        first = resumed is None and meter.counts["candidates_seen"] == 0
        items = self._begun(lambda: source.start(resumed, self._plan(before)))
        yield None
        for batch, size, drawn, place in items:
            self._see(batch, drawn)
            if first:
                self._check(batch, drawn)
                first = False
            if drawn == size:
                self._go_ahead(items)
                yield batch, Step(size), place
                continue
            made = sifter.chooser(batch, drawn, size)
            assert made.selection is not None
            self._go_ahead(items)
            yield made.selection.batch, made, place

    def _of_indices(
        self, source: IndexSource, resumed: IndexPosition | None
    ) -> Iterator[ReadyBatch]:
        sifter, meter = self.sifter, self.sifter.meter
        before = sifter.step - (0 if resumed is None else resumed.steps)
        first = resumed is None and meter.counts["candidates_seen"] == 0
        known = isinstance(getattr(self.loader, "dataset", None), Sized)
        there = len(self.loader.dataset) if known else None  # type: ignore[attr-defined]
        sifter.exit.expect(there)
        if sifter.reference is not None and sifter.chooser.scorer.call.ids is None:
            sifter.reference.expect(there)
        everywhere, name = self._plan(before), namer(self.loader)

        def choose(number: int, drawn: list[Any], size: int) -> DrawnStep:
            if len(drawn) == size:
                return DrawnStep(drawn, size, size, sifts=False)
            # asked each time: an autopilot may change its scorer
            by_id = sifter.exit.by_id or not sifter.rule.policy.scored
            if not by_id or sifter.budget is not None:  # what a sample costs is not known by its ID
                return DrawnStep(drawn, size, len(drawn), sifts=True)
            made = sifter.chooser.of_ids.choose(drawn, size, name=name)
            ordinal = meter.counts["selections"] + source.sifted_ahead + 1
            keep = sifter.schedule.keep_at(before + number)
            audited = sifter.rule.policy.scored and sifter.auditor.due(keep, ordinal, reads=True)
            read = made.with_candidates(drawn) if audited else made.ids
            choice = {**made.to_plain(), "everything": audited}
            return DrawnStep(read, len(made.ids), len(drawn), sifts=True, choice=choice)

        seed = int(torch.randint(2**62, (), generator=torch.Generator().manual_seed(sifter.seed)))
        seed += sifter.step
        items = self._begun(
            lambda: source.start(resumed, seed=seed, plan=everywhere, choose=choose)
        )
        yield None
        for batch, draw, place in items:
            if first:
                self._check(batch, draw.candidates)
                first = False
            found = self._held(batch, draw)
            apart = found != len(draw.indices)
            ids = None if apart or not self._asks_who(draw) else name(draw.indices)
            self._see(batch, found if apart else draw.candidates)
            if not draw.sifts:
                self._go_ahead(items)
                whole = Step(found, ids=ids, drawn=None if ids is None else draw.indices)
                yield batch, whole, place
                continue
            if draw.choice is not None:
                choice, everything = choice_of(draw)
                candidates = draw.candidates if everything else None
                drawn = draw.indices[:candidates]
                made = sifter.chooser.of_ids.read(
                    choice, batch, candidates=candidates, drawn=drawn, name=name
                )
            else:
                made = sifter.chooser(batch, found, None if apart else draw.size, ids=ids)
                if sifter.chooser.together is None and ids is not None:  # else they moved
                    made = made.of_ids(ids, draw.indices)
            assert made.selection is not None
            self._go_ahead(items)
            yield made.selection.batch, made, place

    def _held(self, batch: Any, draw: DrawnStep) -> int:
        """How many samples a batch is; what nobody looks at is taken for what was drawn."""
        sifter, keep = self.sifter, self.sifter.schedule.keep
        idle = not sifter.rule.policy.scored or (not callable(keep) and keep == 1)
        if idle or not (draw.sifts or sifter.exit.observes or sifter.pilot is not None):
            return len(draw.indices)
        by_id = repr(sifter.exit) if sifter.exit.by_id else ""
        return samples_drawn(sifter.chooser.samples, batch, draw, by_id=by_id)

    def _asks_who(self, draw: DrawnStep) -> bool:
        """Whether anybody wants to know the IDs of what was drawn; in the plain loop nobody does."""
        sifter = self.sifter
        return draw.sifts or sifter.exit.observes or sifter.pilot is not None

    def _see(self, batch: Any, count: int) -> None:
        """Count candidates, and the tokens of those that were read."""
        counts = self.sifter.meter.counts
        counts["candidates_seen"] += count
        counts["tokens_seen"] += tokens_in(batch)

    def _check(self, candidates: Any, size: int) -> None:
        """What cannot work should fail on the first batch, not when warm-up ends."""
        keep = self.sifter.schedule.keep
        if not callable(keep) and keep == 1:
            return  # the plain loop
        if size < 2 and self.sifter.draws == "batch":
            raise nothing_to_choose(candidates, size, remedy=", or leave out draws='batch'")
        self.sifter.chooser.check(candidates, divides=self.sifter.draws == "batch")

    def _step(self, batch: Any) -> AbstractContextManager[None]:
        """What is open while the user's step runs: here, from one batch to the next."""
        return self.sifter.observer.training(self.sifter.model, batch=batch)
