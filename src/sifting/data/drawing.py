"""Candidates drawn from a `DataLoader` by index: its data set, order, workers and collating."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sized
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from torch import Tensor

from sifting.data.documents import nothing_to_choose
from sifting.data.generators import Streams, chain_of, restore_generators, states_of
from sifting.data.position import DrawnStep, IndexPosition, size_of
from sifting.data.samples import Samples
from sifting.data.stateful import (
    Beginning,
    FirstPass,
    OwnPlace,
    exact_state,
    fits,
    forget,
    settled,
    with_order,
)
from sifting.data.stream import IndexStream, OrderNote
from sifting.data.twin import StatefulIndexSampler, give_back, lend, sampler_of, twin_of
from sifting.rng import RandomState

# Plans a step: its number in the epoch, its size -> how many candidates, or the step's own size.
CandidatePlan = Callable[[int, int], int]
# Makes a choice by index: the step's number, the candidates, its size -> what to read.
Choose = Callable[[int, list[Any], int], DrawnStep]


def samples_drawn(samples: Samples, batch: Any, draw: DrawnStep, *, by_id: str = "") -> int:
    """How many samples a batch is, of those that were drawn; raises where that cannot be worked with.

    >>> import torch
    >>> samples_drawn(Samples(), torch.zeros(3, 8), DrawnStep([4, 2, 9, 7], 2, 4, sifts=True))
    3

    A row of the data set may hold several documents, each a sample of its own; a collate function
    may drop samples, or make several of one.

    Args:
        samples: how batches divide.
        batch: what the collate function made.
        draw: of what.
        by_id: the exit, for people, where it goes by which sample is which.
    """
    found, drawn = samples.size(batch), len(draw.indices)
    if found != drawn and by_id:
        if samples.documents(batch) is not None:
            raise ValueError(
                f"the {drawn} rows that were drawn hold {found} documents, which the data set has no index of, "
                f"and {by_id} goes by that: leave out packing (TRL: packing=False, padding_free=False), pack "
                "running text (packing_strategy='wrapped'), or use an exit that looks at the documents, such as "
                "exit='tuned'"
            )
        raise ValueError(
            f"the collate function makes {found} samples of the {drawn} that were drawn, so nobody knows which "
            f"they are, and {by_id} goes by that: let it make one of each; or use an exit that looks at the "
            "samples, such as exit='tuned'; or, in a loop of your own, pass draws='batch' and ids= (the member of "
            "the batch that names them)"
        )
    if found < 2 <= drawn and draw.sifts:
        raise nothing_to_choose(batch, found, drawn=drawn)
    return found


def count_steps(samples: int, size: int, plan: CandidatePlan) -> int:
    """Steps that a number of candidates makes.

    >>> count_steps(10, 2, lambda step, size: 2 * size)
    3
    """
    steps = 0
    while samples > 0:
        samples -= plan(steps, size)
        steps += 1
    return steps


class IndexSource:
    """Reads each step's candidates through a twin of the user's loader.

    Args:
        loader: the user's.
        whole: whether an epoch has as many steps as the loader; otherwise one pass.
    """

    def __init__(self, loader: Any, *, whole: bool) -> None:
        if not getattr(loader, "in_order", True):
            raise ValueError(
                "the DataLoader has in_order=False, so that it is not known which sample comes when: leave it "
                "out, or pass draws='batch' to choose within the batches as they come"
            )
        self.loader, self.whole = loader, whole
        self.sampler = sampler_of(loader)
        self.twin = twin_of(loader, self.sampler)
        self._stateful = isinstance(self.sampler, StatefulIndexSampler)
        self._stream: IndexStream | None = None
        # what was drawn and not handed out, and where the loader's own order would be after it
        self._queue: deque[tuple[DrawnStep, OrderNote]] = deque()
        self._drawing: Generator[list[Any]] | None = None
        self._place: IndexPosition | None = None  # in which the epoch began, or goes on
        # the generators to continue from, after what was read again
        self._here: tuple[RandomState, Mapping[str, Tensor]] | None = None

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def sifted_ahead(self) -> int:
        """Choices that are to be made, or were made, among what is drawn and not handed out."""
        return sum(draw.sifts for draw, _ in self._queue)

    def steps_of_a_pass(self, plan: CandidatePlan) -> int:
        """Training steps of one pass over the candidates."""
        inner = self.sampler.inner
        size, samples = getattr(inner, "batch_size", None), getattr(inner, "sampler", None)
        if not isinstance(size, int) or not isinstance(samples, Sized):
            raise TypeError(
                f"how many samples a {type(inner).__name__} gives cannot be determined, so the number of steps of "
                "a pass cannot either"
            )
        left = len(inner) * size if getattr(inner, "drop_last", False) else len(samples)
        return count_steps(left, size, plan)

    def start(
        self, resumed: IndexPosition | None, *, seed: int, plan: CandidatePlan, choose: Choose
    ) -> Iterator[tuple[Any, DrawnStep, IndexPosition]]:
        """Iterate: each step's candidates, how they were drawn, and the place after them.

        Args:
            resumed: the place to continue from; None for the beginning.
            seed: of passes after the first.
            plan: how many candidates a step has.
            choose: what of them is read.
        """
        if resumed is None:
            begin, here = settled(self.loader), None
            begun = Streams(RandomState.now(), begin.generators or states_of(self.loader))
            place = IndexPosition(begun, begun, seed, own=begin.own, order=begin.kept)
            place = replace(place, samples=size_of(self.loader.dataset))
            place = replace(place, iteration=self._iteration, replicas=self._replicas())
        else:
            begin, place, here = Beginning(), resumed, RandomState.now()
            resumed.check_data(self.loader.dataset)
            forget(self.loader)
            self._check_ranks(resumed)
            resumed.begun.restore(self.loader)
            if resumed.iteration is not None:
                self.loader.iteration = resumed.iteration
        if self._iteration is not None:
            self.twin.iteration = self._iteration
        own = place.own if self._stateful else None
        state = own.state if own is not None and fits(own, self.loader) else None
        lend(self.loader, self.twin, self.sampler, state=state)
        self._place, before = place, list[Streams]()

        def again() -> Iterator[list[Any]]:
            """Begin to draw: torchdata does so several times, and takes indices from the last."""
            before.append(Streams.now(self.loader))
            if here is not None:
                self._drawing = self._resumed(place, own, here, plan, choose)
                return self._drawing
            if begin.generators is None:
                self._place = replace(place, begun=before[-1])
            stream = self._make_stream(place, own, begin.order)
            self._drawing = self._begun(stream, before[0] if begin.drawn else None, plan, choose)
            return self._drawing

        if own is not None and isinstance(self.sampler, StatefulIndexSampler):
            self.sampler.told = lambda: own.said
        self.sampler.feed(again)
        source = iter(self.twin)
        if not self._stateful:
            give_back(
                self.loader, self.twin
            )  # it may be begun once more before a batch is asked for
        self._settle()
        reading = self._read(source, place.steps)
        next(reading)
        return reading

    def _make_stream(
        self,
        place: IndexPosition,
        own: OwnPlace | None,
        begun: Iterator[Any] | None = None,
        *,
        again: bool = False,
    ) -> IndexStream:
        inner = self.sampler.inner
        options: dict[str, Any] = {"seed": place.seed, "whole": self.whole}
        if not isinstance(self.sampler, StatefulIndexSampler):
            return IndexStream(inner, **options)
        first = FirstPass(inner, own, begun, again=again)
        after = None if own is None else (own.batches, own.samples)
        stream = IndexStream(inner, **options, first=first, after=after, said=first.said)
        self.sampler.told = lambda: stream.note.said
        return stream

    @property
    def _iteration(self) -> int | None:
        """The number of epochs begun, by which Accelerate's loaders shuffle."""
        found: int | None = getattr(self.loader, "iteration", None)
        return found

    def _replicas(self) -> int | None:
        """Among how many ranks the sampler divides one order, which it tells."""
        found = (getattr(node, "num_replicas", None) for node in chain_of(self.sampler.inner))
        return next((count for count in found if isinstance(count, int)), None)

    def _check_ranks(self, resumed: IndexPosition) -> None:
        if resumed.ranks is not None and self._replicas() != resumed.ranks:
            raise ValueError(
                f"cannot resume on {resumed.ranks} ranks: they continue with one order that a sampler divides "
                f"among them, and this loader's divides it among {self._replicas() or 'none'}: give it a "
                f"DistributedSampler(num_replicas={resumed.ranks})"
            )

    def _begun(
        self, stream: IndexStream, before: Streams | None, plan: CandidatePlan, choose: Choose
    ) -> Generator[list[Any]]:
        """What the twin reads of an epoch that begins.

        Args:
            stream: the indices.
            before: the streams to continue from, where the twin drew a seed for workers that was drawn
                before; None where it had to.
            plan: how many candidates a step has.
            choose: what of them is read.
        """
        if before is not None:
            before.restore(self.loader)
        assert self._place is not None
        self._place = replace(self._place, asked=Streams.now(self.loader))
        yield from self._indices(stream, 0, plan, choose)

    def _resumed(
        self,
        place: IndexPosition,
        own: OwnPlace | None,
        here: RandomState,
        plan: CandidatePlan,
        choose: Choose,
    ) -> Generator[list[Any]]:
        """What the twin reads of an epoch from a place on; first, what it had read ahead there.

        The order is begun, and asked for its first indices, with the streams of the first time.
        """
        place.begun.restore(self.loader)
        order = None
        if place.order is not None:
            order = with_order(iter(self.sampler.inner), place.order)
        stream = self._make_stream(place, own, order, again=True)
        place.asked.restore(self.loader)
        stream.go_to(place.stream)
        self._here = here, place.later
        single = self.loader.num_workers == 0
        for draw in place.ahead:
            stream.pass_note()
            self._queue.append((draw, stream.note))
            if single and draw.state is not None:
                draw.state.restore()  # read again as it was the first time
            yield draw.indices
        self._settle()
        yield from self._indices(stream, place.steps + len(place.ahead), plan, choose)

    def _indices(
        self, stream: IndexStream, number: int, plan: CandidatePlan, choose: Choose
    ) -> Iterator[list[Any]]:
        """What the twin reads, batch by batch; it asks ahead where it has workers.

        Args:
            stream: the indices.
            number: of the first step, in the epoch.
            plan: how many candidates a step has.
            choose: what of them is read.
        """
        self._stream, single = stream, self.loader.num_workers == 0
        for step in count(number):
            drawn = stream.draw(partial(plan, step))
            if drawn is None:
                return
            draw = choose(step, drawn, stream.size)
            if single:
                draw = replace(draw, state=RandomState.now())
            self._queue.append((draw, stream.note))
            yield draw.indices

    def _settle(self) -> None:
        """After what was read again, the generators continue from where the user has them."""
        if self._here is not None:
            here, generators = self._here
            here.restore()
            restore_generators(self.loader, generators)
            self._here = None

    def _read(self, source: Iterator[Any], steps: int) -> Iterator[Any]:
        """None, so that an iteration which nobody goes on with is closed too; then what is read."""
        try:
            yield None
            for batch in source:
                give_back(self.loader, self.twin)
                self._settle()
                draw, note = self._queue.popleft()
                steps += 1
                assert self._place is not None
                assert self._stream is not None
                place = replace(
                    self._place,
                    steps=steps,
                    stream=self._stream.position,
                    ahead=tuple(draw for draw, _ in self._queue),
                    later=states_of(self.loader),
                    ranks=None,
                    own=self._own(note),
                )
                yield batch, draw, place
            if self._iteration is not None:
                self.loader.iteration = self.twin.iteration
        finally:
            give_back(self.loader, self.twin)
            self.sampler.feed(None)
            if self._drawing is not None:  # else workers that live on would have it, and it us
                self._drawing.close()

    def _own(self, note: OrderNote) -> OwnPlace | None:
        """Where the loader is by its own state, where it has one."""
        if not self._stateful:
            return None
        # a copy: a data set may go on writing to what it gave
        state = exact_state(copy.deepcopy(self.twin.state_dict()), note.said)
        return OwnPlace(state, note.batches, note.samples)
