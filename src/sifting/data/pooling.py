"""Candidates pooled from the batches of any iterable: streams, generators, loaders of one's own."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sifting.data.accelerated import at_its_end, count_pass
from sifting.data.drawing import count_steps
from sifting.data.filling import Filling
from sifting.data.generators import checked_states, restore_generators, states_of
from sifting.data.joining import join, named_members
from sifting.data.marks import LoaderMark, Marks, go_to_mark, going_on, mark_of
from sifting.data.position import optional
from sifting.data.samples import Samples
from sifting.data.stateful import forget
from sifting.plain import Plain
from sifting.rng import RandomState


class _Held(NamedTuple):
    """A batch that was taken and not yet used up, and what there was before it was read."""

    batch: Any
    state: RandomState
    mark: LoaderMark | None


@dataclass(frozen=True)
class PoolPosition:
    """Where an epoch over an iterable of batches stands.

    Attributes:
        start: the global random generators when it began.
        generators: then, those of the loader and its samplers.
        steps: training batches handed out.
        passes: passes begun.
        taken: batches taken from the pass under way.
        total: batches taken in all.
        left: samples taken and not yet drawn.
        held: the global generators before each of the batches was read that those are from.
        begun: the global generators when each pass after the first began.
        sizes: of the first pass's batches that no step was made of yet.
        over: whether the first pass is over.
        mark: where the loader was before the batches were read that `held` is of, where it says so
            itself; otherwise it is iterated again from its beginning.
        later: state, by now, of the generators of the loader and its samplers.
        iteration: passes over the loader before the epoch, where it counts them (Accelerate's).
        last: whether no step comes after the one handed out last, as far as is known; not saved.
    """

    start: RandomState
    generators: Mapping[str, Tensor] = field(default_factory=dict)
    steps: int = 0
    passes: int = 1
    taken: int = 0
    total: int = 0
    left: int = 0
    held: tuple[RandomState, ...] = ()
    begun: tuple[RandomState, ...] = ()
    sizes: tuple[int, ...] = ()
    over: bool = False
    mark: LoaderMark | None = None
    later: Mapping[str, Tensor] = field(default_factory=dict)
    iteration: int | None = None
    last: bool = field(default=False, compare=False)

    def to_plain(self) -> dict[str, Any]:
        """As tensors and numbers, to be saved."""
        return {
            "kind": "pool",
            "start": self.start.to_plain(),
            "generators": dict(self.generators),
            "steps": self.steps,
            "passes": self.passes,
            "taken": self.taken,
            "total": self.total,
            "left": self.left,
            "held": [state.to_plain() for state in self.held],
            "begun": [state.to_plain() for state in self.begun],
            "sizes": list(self.sizes),
            "over": self.over,
            "mark": None if self.mark is None else list(self.mark),
            "later": dict(self.later),
            "iteration": self.iteration,
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> PoolPosition:
        """Back from what `to_plain` gave."""
        found = Plain(plain, "the place in the pooled batches")
        sizes = found.items("sizes")
        numbers = Plain({str(place): size for place, size in enumerate(sizes)}, "'sizes'")
        return cls(
            found.made("start", RandomState.from_plain),
            checked_states(found, "generators"),
            steps=found.whole("steps"),
            passes=found.whole("passes", least=1),
            taken=found.whole("taken"),
            total=found.whole("total"),
            left=found.whole("left"),
            held=tuple(map(RandomState.from_plain, found.items("held"))),
            begun=tuple(map(RandomState.from_plain, found.items("begun"))),
            sizes=tuple(numbers.whole(place) for place in numbers),
            over=found.flag("over"),
            mark=None if found.get("mark") is None else found.made("mark", mark_of),
            later=checked_states(found, "later"),
            iteration=optional(found, "iteration") if "iteration" in found else None,
        )


class PoolSource:
    """Joins batches until a step has its candidates; what is left over goes to the next.

    >>> source = PoolSource([torch.arange(3), torch.arange(3, 6)], whole=True)
    >>> [(batch.tolist(), size) for batch, size, _, _ in source.start(None, lambda step, n: 2 * n)]
    [([0, 1, 2, 3, 4, 5], 3), ([0, 1, 2, 3, 4, 5], 3)]

    Args:
        loader: any iterable of batches.
        whole: whether an epoch has as many steps as a plain pass over it has batches; otherwise it
            is one pass over the candidates.
        filling: see `join`; it learns from the batches.
        samples: how batches divide into samples.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        *,
        whole: bool,
        filling: Filling | None = None,
        samples: Samples | None = None,
    ) -> None:
        self.loader, self.whole = loader, whole
        self.filling = Filling() if filling is None else filling
        self.samples = Samples() if samples is None else samples

    def __len__(self) -> int:
        if not isinstance(self.loader, Sized):
            raise TypeError(
                f"a {type(self.loader).__name__} has no length, so neither has what is sifted from it"
            )
        return len(self.loader)

    def steps_of_a_pass(self, plan: Callable[[int, int], int]) -> int:
        """Training steps of one pass over the candidates."""
        if not isinstance(self.loader, Sequence):
            raise TypeError(
                f"the sizes of a {type(self.loader).__name__}'s batches cannot be determined, so the number of "
                "steps of a pass cannot either"
            )
        sizes = [self.samples.size(batch) for batch in self.loader]
        return count_steps(sum(sizes), max(sizes, default=1), plan)

    def start(
        self, resumed: PoolPosition | None, plan: Callable[[int, int], int]
    ) -> Iterator[tuple[Any, int, int, PoolPosition]]:
        """Iterate: each step's candidates, its size, how many were drawn again, the place after it.

        Args:
            resumed: the place to continue from, to which the loader is iterated again.
            plan: step and its size to how many candidates it has.
        """
        if resumed is None:
            iteration = getattr(self.loader, "iteration", None)
            start = PoolPosition(RandomState.now(), states_of(self.loader), iteration=iteration)
            return _Pool(self, start).steps(plan)
        here = RandomState.now()
        resumed.start.restore()
        restore_generators(self.loader, resumed.generators)
        forget(self.loader)
        if resumed.iteration is not None:
            extra = 0 if resumed.mark is None else resumed.mark.passes - 1
            count_pass(self.loader, resumed.iteration, extra)
        if resumed.mark is not None:
            go_to_mark(self.loader, resumed.mark)
        pool = _Pool(self, resumed)
        pool.replay(resumed)
        here.restore()
        if resumed.mark is not None:
            restore_generators(self.loader, resumed.later)
        return pool.steps(plan)


class _Pool:
    """One epoch."""

    def __init__(self, source: PoolSource, place: PoolPosition) -> None:
        self.source, self.place, self.samples = source, place, source.samples
        self.held: deque[_Held] = deque()
        self.begun: list[RandomState] = []
        self.left = self.total = self.taken = 0
        self.passes, self.over = 1, False
        self.sizes: deque[int] = deque()
        self.number = place.steps
        self._marks = Marks(source.loader)
        self._iterator = iter(source.loader)
        if place.mark is not None:
            self._iterator = going_on(source.loader, self._iterator)

    def replay(self, place: PoolPosition) -> None:
        """Take as many batches as were taken, and hold what was left of them.

        Those are read again just as they were the first time.
        """
        if place.mark is not None:  # the loader has gone on to the first of them by itself
            self._marks.last = place.mark
            self.passes, self.taken, self.total = place.mark[1:]
            self.begun = list(place.begun[: self.passes - 1])
        while self.total < place.total or self.passes < place.passes:
            again = place.total - self.total
            if again <= len(place.held):
                place.held[len(place.held) - again].restore()
            if not self.take() and not self.begin_again(place.begun):
                raise ValueError(
                    f"cannot resume: the loader ended after {self.total} batches, and {place.total} had been "
                    "used; give the loader that the state was saved with"
                )
            while len(self.held) > len(place.held):
                self.left -= self.samples.size(self.held.popleft().batch)
        if self.left > place.left:
            first = self.held.popleft()
            size = self.samples.size(first.batch)
            cut = torch.arange(self.left - place.left, size)
            rest = self.samples.take(first.batch, cut, size=size)
            self.held.appendleft(first._replace(batch=rest))
        self.left, self.sizes, self.over = place.left, deque(place.sizes), place.over

    def take(self) -> bool:
        """Hold one more batch of the pass under way; False where it is over."""
        state, mark = RandomState.now(), self._marks.now(self.passes, self.taken, self.total)
        batch = next(self._iterator, self)
        if batch is self:
            self.over = True
            return False
        size, self._marks.last = self.samples.size(batch), mark
        self.source.filling.meet(batch, lambda: named_members(batch, self.samples, size=size))
        self.taken += 1
        self.total += 1
        self.left += size
        self.held.append(_Held(batch, state, mark))
        if not self.over:
            self.sizes.append(size)
        return True

    def begin_again(self, begun: Sequence[RandomState] = ()) -> bool:
        """Begin another pass; False where an epoch has but one, or the last one was empty.

        Args:
            begun: the generators that passes after the first are to begin with, where they did so
                before.
        """
        loader = self.source.loader
        if not self.source.whole or self.taken == 0 or isinstance(loader, Iterator):
            return False  # a generator runs once
        if self.passes <= len(begun):
            begun[self.passes - 1].restore()
        self.begun.append(RandomState.now())
        if self.place.iteration is not None:
            count_pass(loader, self.place.iteration, self.passes)
        self._iterator, self.passes, self.taken = iter(loader), self.passes + 1, 0
        return True

    def steps(
        self, plan: Callable[[int, int], int]
    ) -> Iterator[tuple[Any, int, int, PoolPosition]]:
        """Of the epoch; the next one begins with the pass that the plain loader would make."""
        iteration, done = self.place.iteration, 0
        try:
            yield from self._steps(plan)
            done = 1
        finally:
            if iteration is not None and self.passes > 1:
                self.source.loader.iteration = iteration + done  # type: ignore[attr-defined]

    def _steps(
        self, plan: Callable[[int, int], int]
    ) -> Iterator[tuple[Any, int, int, PoolPosition]]:
        largest = 0
        while True:
            if not self.sizes and not self.over:
                self.take()
            if not self.sizes:
                return
            size = self.sizes.popleft()
            largest = max(size, largest)
            if not self.source.whole:
                size = largest
            wanted = plan(self.number, size)
            while self.left < wanted and (self.take() or self.begin_again()):
                pass
            drawn = min(wanted, self.left)
            if not drawn:
                return
            if drawn < wanted:
                size = -(-size * drawn // wanted)
            if not self.source.whole:
                self.sizes.clear()
            batch = self._drawn(drawn)
            if not self.source.whole and (self.left or not self.over):
                self.sizes.append(largest)
            self.number += 1
            yield batch, size, drawn, self._position()

    def _drawn(self, count: int) -> Any:
        parts: list[Any] = []
        self.left -= count
        while count:
            first = self.held.popleft()
            batch, size = first.batch, self.samples.size(first.batch)
            if size > count:
                rest = self.samples.take(batch, torch.arange(count, size), size=size)
                self.held.appendleft(first._replace(batch=rest))
                batch, size = self.samples.take(batch, torch.arange(count), size=size), count
            parts.append(batch)
            count -= size
        return join(parts, filling=self.source.filling, samples=self.samples)

    def _position(self) -> PoolPosition:
        place, counts = self.place, (self.passes, self.taken, self.total)
        return PoolPosition(
            place.start,
            place.generators,
            self.number,
            *counts,
            self.left,
            tuple(one.state for one in self.held),
            tuple(self.begun),
            tuple(self.sizes),
            self.over,
            self.held[0].mark if self.held else self._marks.after(*counts),
            states_of(self.source.loader) if self._marks.kept else {},
            place.iteration,
            self._is_last(),
        )

    def _is_last(self) -> bool:
        more = self.sizes if self.source.whole else self.left
        return not more and (self.over or at_its_end(self.source.loader))
