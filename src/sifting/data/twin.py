"""A twin of a user's `DataLoader`, which reads what it is told to: same data set, workers, collating."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from sifting.data.stateful import Said, base_of, keeps_its_place

Begin = Callable[[], Iterator[list[Any]]]


class IndexSampler:
    """A batch sampler that gives each step's candidates; anything else, the user's own answers.

    Where nothing is fed, it gives the user's own batches: worker processes that live on are shared with
    the loader, which may be iterated without its twin.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self._begin: Begin | None = None

    def __getattr__(self, name: str) -> Any:
        if name in ("inner", "_begin", "state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self.inner, name)

    def __len__(self) -> int:
        return len(self.inner)

    def feed(self, begin: Begin | None) -> None:
        """Set what makes the next iteration, at the moment when the user's own would begin."""
        self._begin = begin

    def __iter__(self) -> Iterator[list[Any]]:
        return iter(self.inner) if self._begin is None else self._begin()


class StatefulIndexSampler(IndexSampler):
    """Beside that, says to torchdata where the user's own order would be after as many steps."""

    told: Callable[[], Said] | None = None  # of the iteration begun last

    def __iter__(self) -> Iterator[list[Any]]:
        if self._begin is None:
            self.told = None
            return super().__iter__()
        return _Indices(super().__iter__(), self)

    def state_dict(self) -> Any:
        """Of the user's sampler."""
        return (Said.by(self.inner, None) if self.told is None else self.told()).sampler

    def load_state_dict(self, state: Any) -> None:
        """Who feeds the sampler finds the place."""
        if self._begin is None and state is not None:
            self.inner.load_state_dict(state)


class _Indices:
    """An iteration over a `StatefulIndexSampler`."""

    def __init__(self, source: Iterator[list[Any]], sampler: StatefulIndexSampler) -> None:
        self.source, self.sampler = source, sampler

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        return next(self.source)

    def state_dict(self) -> Any:
        """Of the iteration over the user's sampler."""
        return None if self.sampler.told is None else self.sampler.told().iterator

    def load_state_dict(self, state: Any) -> None:
        """Who feeds the sampler finds the place."""


def draws_by_index(loader: Any) -> bool:
    """Whether a loader is a `DataLoader` that collates samples of a map-style data set itself.

    >>> draws_by_index(DataLoader([1, 2, 3], batch_size=2)), draws_by_index([1, 2])
    (True, False)
    """
    return (
        isinstance(loader, DataLoader)
        and not isinstance(loader.dataset, IterableDataset)
        and loader.batch_sampler is not None
        and "Dispatcher" not in type(loader).__name__  # Accelerate's reads on one rank for all
        and _iterates_as_usual(type(loader))
    )


def _iterates_as_usual(kind: type) -> bool:
    """Whether a class of loaders makes a new iterator over its batch sampler for each epoch."""
    owner = next(base for base in kind.__mro__ if "__iter__" in base.__dict__)
    return owner is DataLoader or owner.__module__.split(".")[0] in ("accelerate", "torchdata")


def sampler_of(loader: Any) -> IndexSampler:
    """What a twin of a loader is to iterate."""
    kind = StatefulIndexSampler if keeps_its_place(loader) else IndexSampler
    return kind(loader.batch_sampler)


def twin_of(loader: Any, sampler: IndexSampler) -> Any:
    """The same loader with another batch sampler: its data set, workers, collating and class."""
    twin = object.__new__(type(loader))
    twin.__dict__.update(loader.__dict__)
    base = loader.__dict__.get("base_dataloader")  # Accelerate's adapters iterate one inside
    if isinstance(base, DataLoader):
        twin.__dict__["base_dataloader"] = twin_of(base, sampler)
    if "batch_sampler" in loader.__dict__:
        twin.__dict__["batch_sampler"] = sampler
    return twin


def lend(loader: Any, twin: Any, sampler: IndexSampler, *, state: Any = None) -> None:
    """Before an epoch: the twin has the loader's worker processes, where they live on.

    Args:
        loader: the user's.
        twin: its twin.
        sampler: the twin's.
        state: that the twin is to continue from, where it is torchdata's.
    """
    base, own = base_of(loader), base_of(twin)
    iterator = base.__dict__.get("_iterator") if base.persistent_workers else None
    if iterator is not None:
        iterator._index_sampler = sampler
    own.__dict__["_iterator"] = iterator
    if keeps_its_place(loader):
        own.__dict__.update(_initial_iter_for_state_dict=False, next_iter_state=state)


def give_back(loader: Any, twin: Any) -> None:
    """While an epoch runs: the loader has the twin's workers, and says of its place what the twin does."""
    base, own = base_of(loader), base_of(twin)
    if own.persistent_workers or keeps_its_place(loader):
        base.__dict__["_iterator"] = own.__dict__.get("_iterator")
    if "dl_state_dict" in twin.__dict__:  # Accelerate's
        loader.__dict__["dl_state_dict"] = twin.__dict__["dl_state_dict"]
