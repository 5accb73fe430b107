"""The loader that Hugging Face's `Trainer` iterates, and what it gets when it resumes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from typing import Any

from torch.utils.data import IterableDataset

from sifting.integrations.counts import Epochs
from sifting.loader import SiftedLoader
from sifting.sifter import Sifter


class TrainLoader(SiftedLoader):
    """Sifted batches; anything else that is asked of it, the loader of candidates answers.

    Args:
        size: candidates in a batch.
        world_size: processes that the dataset is divided among.
    """

    def __init__(
        self, sifter: Sifter, loader: Iterable[Any], size: int, *, world_size: int = 1
    ) -> None:
        super().__init__(sifter, loader)
        self._size, self._world_size = size, world_size

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet, while it is unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    @property
    def sized(self) -> bool:
        """Whether the number of candidate batches is known."""
        try:
            len(self.loader)  # type: ignore[arg-type]
        except TypeError:
            return False
        return True

    def epochs(self, accumulation: int, *, afresh: bool) -> Epochs:
        """The lengths of the epochs to come, or of all where a run is taken up again."""
        sifter = self.sifter
        return Epochs(
            sifter.schedule,
            self._sizes(),
            step=0 if afresh else sifter.step,
            batch=0 if afresh else sifter.cursor.batches_met,
            accumulation=accumulation,
        )

    def _sizes(self) -> list[int]:
        count = len(self.loader)  # type: ignore[arg-type]
        sizes = [self._size] * count
        samples = len(self.loader.dataset)  # type: ignore[attr-defined]
        # over several processes, Accelerate fills the last batch up from the first
        if self._world_size == 1 and samples < self._size * count:
            sizes[-1] = samples - self._size * (count - 1)
        return sizes

    def _step(self) -> AbstractContextManager[None]:
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
