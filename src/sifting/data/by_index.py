"""Samples of a `DataLoader`'s data set, drawn by index beside the loader, which is not touched."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
)

from sifting.data.stream import plain_indices
from sifting.data.twin import draws_by_index
from sifting.rng import RandomState

FEW = 1_000_000  # indices that are shuffled as a whole; of more, single ones are drawn
SEEN = 20_000  # indices that are remembered where the sampler's own cannot be determined
DEEP = 3  # how far into a data set generators are looked for


class IndexDraws:
    """Batches by index from the data set and the collate function of a loader.

    >>> from torch.utils.data import DataLoader
    >>> draws = IndexDraws(DataLoader(range(8), batch_size=2, shuffle=True))
    >>> draws.begin(seed=0)
    >>> indices = draws.indices(8)
    >>> sorted(indices), draws.read(indices[:2]).tolist() == indices[:2]
    ([0, 1, 2, 3, 4, 5, 6, 7], True)

    Every random number comes from a generator of its own. What a data set draws from the global
    streams when it is read is for the caller to put back.

    Args:
        loader: for which `draws_by_index` holds.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self._every = sampled(loader)
        self._seen: deque[Any] = deque(maxlen=SEEN)
        self._generator = torch.Generator()
        self._order: deque[Any] = deque()

    @classmethod
    def of(cls, loader: Any) -> IndexDraws | None:
        """From a loader that draws by index; None from any other."""
        return cls(loader) if draws_by_index(loader) else None

    def note(self, indices: Sequence[Any]) -> None:
        """Remember what was trained, where the sampler does not tell what it draws from."""
        if self._every is None:
            self._seen.extend(indices)

    @property
    def seen(self) -> list[Any]:
        """What was noted, as plain indices."""
        return plain_indices(self._seen)

    @property
    def among(self) -> Sequence[Any]:
        """What is drawn from."""
        return self._seen if self._every is None else self._every

    def begin(self, seed: int) -> None:
        """Draw in the order of a seed from now on."""
        self._generator.manual_seed(seed)
        self._order.clear()

    def indices(self, count: int) -> list[Any]:
        """The next ones; none comes twice before all have come."""
        while len(self._order) < count:
            among = self.among
            if len(among) > FEW:
                more = torch.randint(len(among), (count,), generator=self._generator)
            else:
                more = torch.randperm(len(among), generator=self._generator)
            self._order.extend(among[i] for i in more.tolist())
        return [self._order.popleft() for _ in range(count)]

    def read(self, indices: Sequence[Any]) -> Any:
        """The samples, read and collated in this process as the loader would."""
        data = self.loader.dataset
        whole = getattr(data, "__getitems__", None)
        samples = whole(list(indices)) if callable(whole) else [data[i] for i in indices]
        return self.loader.collate_fn(samples)


def sampled(loader: Any) -> Sequence[Any] | None:
    """The indices that a loader's sampler draws from; None where it does not tell.

    >>> from torch.utils.data import DataLoader
    >>> sampled(DataLoader(range(8), shuffle=True))
    range(0, 8)
    >>> sampled(DataLoader(range(8), sampler=SubsetRandomSampler([1, 2])))
    [1, 2]
    """
    outer = loader.batch_sampler
    if type(outer) is not BatchSampler:
        return None
    inner = outer.sampler
    if type(inner) is SubsetRandomSampler:
        return inner.indices
    if type(inner) in (SequentialSampler, RandomSampler, DistributedSampler):
        return range(len(loader.dataset))
    return None


def namer(loader: Any) -> Callable[[Sequence[Any]], list[Any]]:
    """From what a loader's sampler draws to what its samples are known by.

    That is the same, unless a sampler draws more than a place in the data set, such as the seed of an
    augmentation: the data set's `sample_id(drawn)` then names the sample. Of a number or a string, which
    are names already, it is not asked: a method of that name may be there for something else.

    >>> from torch.utils.data import DataLoader
    >>> namer(DataLoader(range(8)))([4, torch.tensor(2)])
    [4, 2]
    """
    named: Any = getattr(loader.dataset, "sample_id", None)
    if not callable(named):
        return plain_indices

    def names(drawn: Sequence[Any]) -> list[Any]:
        found = plain_indices(drawn)
        return plain_indices(one if isinstance(one, int | str) else named(one) for one in found)

    return names


class OwnStreams:
    """The generators that a data set holds, its transforms' too, kept to be put back.

    >>> data = type("Data", (), {})()
    >>> data.random = random.Random(0)
    >>> streams = OwnStreams(data)
    >>> first = data.random.random()
    >>> streams.restore()
    >>> data.random.random() == first
    True
    """

    def __init__(self, data: Any) -> None:
        self._kept = [(found, _state(found)) for found in _generators(data)]

    def seed(self) -> None:
        """Begin those of torch and of Python anew, as they would begin at any other time."""
        for found, _ in self._kept:
            if isinstance(found, torch.Generator):
                found.manual_seed(0)
            elif isinstance(found, random.Random):
                found.seed(0)

    def restore(self) -> None:
        """Put them back to where they were."""
        for found, state in self._kept:
            if isinstance(found, torch.Generator):
                found.set_state(state)
            elif isinstance(found, random.Random):
                found.setstate(state)
            elif hasattr(found, "bit_generator"):
                found.bit_generator.state = state
            else:
                found.set_state(state)


@contextmanager
def seeded_alike(loader: Any) -> Iterator[None]:
    """While open, what is read by a loader is drawn as it would be at any other time; no stream shows it.

    >>> from torch.utils.data import DataLoader
    >>> own = torch.Generator().manual_seed(3)
    >>> loader, before = DataLoader(range(8), shuffle=True, generator=own), own.get_state()
    >>> with seeded_alike(loader):
    ...     first = torch.cat(list(loader)).tolist()
    >>> bool((own.get_state() == before).all())
    True
    >>> own.manual_seed(4) is own
    True
    >>> with seeded_alike(loader):
    ...     torch.cat(list(loader)).tolist() == first
    True

    Its own generators may be those of the loader that is trained.
    """
    streams = RandomState.now()
    held = [OwnStreams(loader), OwnStreams(getattr(loader, "dataset", None))]
    try:
        torch.default_generator.manual_seed(0)
        for found in held:
            found.seed()
        yield
    finally:
        streams.restore()
        for found in reversed(held):
            found.restore()


def _state(found: Any) -> Any:
    if isinstance(found, random.Random):
        return found.getstate()
    if hasattr(found, "bit_generator"):
        return found.bit_generator.state
    return found.get_state()


def _generators(data: Any) -> Iterator[Any]:
    numpy: Any = sys.modules.get("numpy")
    kinds: tuple[type, ...] = (torch.Generator, random.Random)
    if numpy is not None:
        kinds = (*kinds, numpy.random.Generator, numpy.random.RandomState)
    nodes, seen = [(data, 0)], set()
    while nodes:
        node, depth = nodes.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, kinds):
            yield node
        elif depth < DEEP:
            nodes += [(child, depth + 1) for child in _children(node)]


def _children(node: Any) -> Iterable[Any]:
    if isinstance(node, list | tuple):
        # of transforms there are few; what is longer is data
        return node if len(node) <= 64 else ()
    if isinstance(node, dict):
        return node.values() if len(node) <= 64 else ()
    if isinstance(node, torch.Tensor | type) or type(node).__module__ == "builtins":
        return ()
    return vars(node).values() if hasattr(node, "__dict__") else ()
