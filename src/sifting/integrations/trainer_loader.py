"""The loader that Hugging Face's `Trainer` iterates, and what it gets when it resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from typing import Any

from torch.utils.data import IterableDataset

from sifting.loader import SiftedLoader


class TrainLoader(SiftedLoader):
    """Sifted batches; anything else that is asked of it, the Trainer's own loader answers."""

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet, while it is unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        """Of a whole epoch, also where one is resumed."""
        return len(self.loader)  # type: ignore[arg-type]

    def _step(self, batch: Any) -> AbstractContextManager[None]:
        # Several batches are fetched before the first is trained, and an epoch's last stays open
        # over evaluation and saving: the Trainer's own `training_step` says when a step runs.
        return nullcontext()


class ResumedLoader:
    """What is left of an epoch, as Accelerate's `skip_first_batches` wants it.

    The Trainer skips batches through that function, which would take the loader of candidates
    apart and skip candidates. Given a stream instead, it iterates it and throws the first batches
    away: those are stand-ins here, since the sifter finds its own place.

    Args:
        loader: the sifted loader, whose sifter has its state loaded.
        done: batches that were trained before.
        first: called before anything is fetched.
    """

    batch_size = None  # the stream gives whole batches
    drop_last = False
    prefetch_factor = None

    def __init__(self, loader: TrainLoader, done: int, *, first: Callable[[], None]) -> None:
        self.dataset = _Rest(loader, done, first)

    @staticmethod
    def collate_fn(batch: Any) -> Any:
        """A batch as it is."""
        return batch


class _Rest(IterableDataset[Any]):
    def __init__(self, loader: TrainLoader, done: int, first: Callable[[], None]) -> None:
        self.loader, self.done, self.first = loader, done, first

    def __iter__(self) -> Iterator[Any]:
        yield from repeat(None, self.done)
        self.first()
        yield from self.loader
