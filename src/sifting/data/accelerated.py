"""What Accelerate's loaders count: whether a step is its epoch's last, and the number of a pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sifting.data.stream import FAR


class EpochEnd:
    """Stands for a loader of Accelerate's while a step that was made of it is trained.

    The loader itself says that it is at its end once its last batch is read. That is too soon where
    candidates are read ahead, or where an epoch needs several passes over it.

    Args:
        loader: any; of others than Accelerate's nothing is told.

    Attributes:
        end_of_dataloader: whether the step is the epoch's last.
        remainder: as the loader has it.
    """

    def __init__(self, loader: Any) -> None:
        self._loader, self._state = loader, getattr(loader, "gradient_state", None)
        self._steps = 0
        self.end_of_dataloader, self.remainder = False, -1

    @contextmanager
    def step(self, place: Any, length: int | None) -> Iterator[None]:
        """While a step is trained.

        Args:
            place: after it, which may say itself whether it is the `last`.
            length: steps of the epoch, or of what is left of it; None where only the loader knows.
        """
        self._steps += 1
        last = getattr(place, "last", None if length is None else self._steps == length)
        if self._state is None:
            yield
            return
        self.remainder = self._state.remainder
        self.end_of_dataloader = self._state.end_of_dataloader if last is None else last
        self._state._add_dataloader(self)
        try:
            yield
        finally:
            self._state._remove_dataloader(self)

    def over(self) -> None:
        """After the epoch: a pass that was not read to its end is not under way any more."""
        if self._state is not None:
            self._state._remove_dataloader(self._loader)


def at_its_end(loader: Any) -> bool:
    """Whether a loader that looks ahead, as Accelerate's do, has given its last batch."""
    return getattr(loader, "end_of_dataloader", None) is True


def count_pass(loader: Any, iteration: int, extra: int) -> None:
    """Before a pass over a loader of Accelerate's, which tells its number to a sampler or data set.

    A sampler is told what it would be where candidates are drawn by index, so that the order is the same.

    Args:
        loader: it.
        iteration: number of the epoch.
        extra: passes of the epoch before this one.
    """
    sampler = getattr(getattr(loader, "batch_sampler", None), "sampler", None)
    loader.iteration = iteration + extra * (FAR if hasattr(sampler, "set_epoch") else 1)
