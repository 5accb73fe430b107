"""The order in which a loader would read its samples, pass after pass, as indices.

An epoch's first pass is the plain loader's own: drawn from the same generators at the same moment.
Selection draws more candidates than one pass holds; the passes after it are drawn from a seed, with every
generator set aside and put back, so that the next epoch's first pass is the plain loader's again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, NamedTuple, Protocol, runtime_checkable

from sifting.data.generators import OwnGenerators
from sifting.plain import Plain

FAR = 1_000_003  # between the epochs that a sampler is told in one pass and in the next
AHEAD = 32  # batches of a further pass that are taken from the sampler at once


@dataclass(frozen=True)
class StreamPosition:
    """A place in a stream of indices.

    Attributes:
        extra: passes begun after the first.
        taken: batches taken from the pass under way.
        over: whether the first pass is over.
        passed: indices in those batches.
        carry: indices taken and not yet drawn.
        sizes: of the first pass's batches that no step was made of yet: a size, and how often.
    """

    extra: int = 0
    taken: int = 0
    over: bool = False
    passed: int = 0
    carry: tuple[Any, ...] = ()
    sizes: tuple[tuple[int, int], ...] = ()

    def to_plain(self) -> dict[str, Any]:
        """As numbers, to be saved."""
        plain = {item.name: getattr(self, item.name) for item in fields(self)}
        carry, sizes = plain_indices(self.carry), list(map(list, self.sizes))
        return {**plain, "carry": carry, "sizes": sizes}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> StreamPosition:
        """Back from what `to_plain` gave."""
        found = Plain(plain, "the place in the order")
        return cls(
            extra=found.whole("extra"),
            taken=found.whole("taken"),
            over=found.flag("over"),
            passed=found.whole("passed"),
            carry=tuple(found.items("carry")),
            sizes=tuple(map(_run_of_sizes, found.items("sizes"))),
        )


def _run_of_sizes(plain: Any) -> tuple[int, int]:
    pair = plain if isinstance(plain, list | tuple) and len(plain) == 2 else (plain, None)
    found = Plain({"size": pair[0], "times": pair[1]}, "a run of batches")
    return found.whole("size", least=1), found.whole("times", least=1)


def plain_index(index: Any) -> Any:
    """An index as Python has it, where a sampler draws it with NumPy or torch.

    >>> import torch
    >>> plain_index(torch.tensor(3)), plain_index((3, "left"))
    (3, (3, 'left'))
    """
    item = getattr(index, "item", None)
    return item() if callable(item) and getattr(index, "ndim", None) == 0 else index


def plain_indices(indices: Iterable[Any]) -> list[Any]:
    """Indices as Python has them; those that it has already are not looked at one by one.

    >>> import torch
    >>> plain_indices([torch.tensor(3), 4])
    [3, 4]
    """
    found = list(indices)
    return found if set(map(type, found)) <= {int} else list(map(plain_index, found))


@runtime_checkable
class LatePass(Protocol):
    """A pass that goes to its place only when it is asked to."""

    def find(self) -> None:
        """Go there now."""
        ...


class OrderNote(NamedTuple):
    """Where a loader's own order is after as many of its batches as there were steps.

    Attributes:
        batches: of the first pass.
        samples: in those of them that the stream has seen.
        said: what the loader's sampler said of it.
    """

    batches: int
    samples: int
    said: Any = None


class _Sizes:
    """A queue of sizes that are mostly alike, kept as sizes and how often each comes."""

    def __init__(self, runs: Iterable[tuple[int, int]] = ()) -> None:
        self._runs = deque(runs)

    def __bool__(self) -> bool:
        return bool(self._runs)

    def append(self, size: int) -> None:
        count = self._runs.pop()[1] if self._runs and self._runs[-1][0] == size else 0
        self._runs.append((size, count + 1))

    def popleft(self) -> int:
        size, count = self._runs.popleft()
        if count > 1:
            self._runs.appendleft((size, count - 1))
        return size

    def clear(self) -> None:
        self._runs.clear()

    def runs(self) -> tuple[tuple[int, int], ...]:
        return tuple(self._runs)


class IndexStream:
    """Indices from a batch sampler, as many as are asked for, over as many passes as they need.

    >>> stream = IndexStream([[0, 1], [2, 3], [4]], seed=0)
    >>> [stream.draw(lambda n: 2 * n) for _ in range(3)]
    [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4]]
    >>> stream.draw(lambda n: 2 * n) is None   # as many steps as the sampler has batches
    True

    Args:
        sampler: gives batches of indices; iterated again for each pass.
        seed: of the passes after the first.
        whole: whether an epoch has one step for each batch of the first pass; otherwise it ends
            with the first pass.
        first: an iterator over the first pass, where it was begun already.
        after: batches of the first pass, and samples in them, that it begins after.
        said: asked after each batch of the first pass, for its `OrderNote`.
    """

    def __init__(
        self,
        sampler: Iterable[Any],
        *,
        seed: int,
        whole: bool = True,
        first: Any = None,
        after: tuple[int, int] | None = None,
        said: Callable[[], Any] | None = None,
    ) -> None:
        self.sampler, self.seed, self.whole = sampler, seed, whole
        self._carry: deque[Any] = deque()
        self._sizes = _Sizes()
        self._extra, (self._taken, self._passed) = 0, after or (0, 0)
        self._over = False
        self._said, self._notes = said, deque[OrderNote]()
        self._aside = OwnGenerators(sampler)
        self._read: deque[Any] = deque()  # batches of a further pass, ahead of those taken
        self._pass = iter(sampler) if first is None else first
        self.note = self._noted()  # of the step drawn last
        self.size = 0  # what the step drawn last trains
        self._batch_size = 0  # the largest of the first pass so far: what a step trains

    @property
    def position(self) -> StreamPosition:
        """Where the stream is."""
        counts = (self._extra, self._taken, self._over, self._passed)
        return StreamPosition(*counts, tuple(self._carry), self._sizes.runs())

    def go_to(self, place: StreamPosition) -> None:
        """Move a fresh stream on to a place; nothing but indices is read.

        Generators must be where they were when the first pass began.
        """
        if place.extra:
            while self._said is not None and self._pass_over():
                pass  # of the first pass, there may be notes that no step has had
            self._extra, self._taken, self._passed = place.extra, 0, 0
            self._begin_pass()
        self._over = place.over
        while self._taken < place.taken:
            if not self._pass_over():
                raise ValueError(
                    f"cannot resume: the loader's order ended after {self._taken} batches, and {place.taken} had "
                    "been drawn; give the loader that the state was saved with"
                )
        if self._passed != place.passed:
            raise ValueError(
                f"cannot resume: {place.taken} batches of this loader hold {self._passed} samples, and "
                f"{place.passed} had been drawn; give the loader that the state was saved with"
            )
        self._carry, self._sizes = deque(place.carry), _Sizes(place.sizes)
        if isinstance(self._pass, LatePass):
            self._pass.find()  # now: later the generators are others'

    def _pass_over(self) -> bool:
        batch = self._next()
        if batch is None:
            return False
        self._count(batch)
        return True

    def _count(self, batch: Sequence[Any]) -> None:
        self._taken += 1
        self._passed += len(batch)
        if not self._extra and self._said is not None:
            self._notes.append(self._noted())

    def _noted(self) -> OrderNote:
        said = None if self._said is None else self._said()
        return OrderNote(self._taken, self._passed, said)

    def pass_note(self) -> None:
        """Go on to the note of the next step."""
        while self._notes:
            self.note = self._notes.popleft()
            if self.whole:  # in one pass, a step is no batch: what was taken last tells
                return

    def draw(self, wanted: Any) -> list[Any] | None:
        """The candidates of the next step; None where the epoch is over.

        Args:
            wanted: from the size of the step to how many candidates it chooses among.
        """
        if not self._sizes and not self._over:
            self._take()
        if not self._sizes:
            return None
        size = self._sizes.popleft()
        if not self.whole:
            return self._draw_once(size, wanted)
        count = wanted(size)
        while len(self._carry) < count:
            self._take()
        self.pass_note()
        self.size = size
        return [self._carry.popleft() for _ in range(count)]

    def _draw_once(self, size: int, wanted: Any) -> list[Any] | None:
        """Of one pass: what is left of it may be less than a step wants."""
        self._batch_size = size = max(size, self._batch_size)
        count = wanted(size)
        while len(self._carry) < count and not self._over:
            self._take()
        self.pass_note()
        drawn = [self._carry.popleft() for _ in range(min(count, len(self._carry)))]
        self._sizes.clear()
        if self._carry or not self._over:
            self._sizes.append(size)
        self.size = size if len(drawn) == count else -(-size * len(drawn) // count)
        return drawn or None

    def _take(self) -> None:
        """One more batch of indices, of a new pass where this one is over."""
        batch = self._next()
        if batch is None and not self._over:
            self._over = True
            if not self.whole or not (self._sizes or self._carry):
                return
        empty = 0
        while batch is None:
            if empty > 1:
                raise ValueError("the loader's sampler stopped giving indices")
            self._extra, self._taken, self._passed = self._extra + 1, 0, 0
            empty += 1
            self._begin_pass()
            batch = self._next()
        self._count(batch)
        self._carry.extend(batch)
        if not self._over:
            self._sizes.append(len(batch))

    def _begin_pass(self) -> None:
        self._aside.begin(self.seed + self._extra, self._extra * FAR)
        with self._aside.used():
            self._pass = iter(self.sampler)
        self._read.clear()

    def _next(self) -> Sequence[Any] | None:
        if not self._extra:
            return next(self._pass, None)
        if not self._read:  # generators are exchanged once for many batches
            with self._aside.used():
                self._read.extend(islice(self._pass, AHEAD))
        return self._read.popleft() if self._read else None
