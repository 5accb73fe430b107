"""Samples in tensors: batches by index in one look-up, and in order to evaluate.

Shapes: N samples, B of a batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sifting.recipes.batches import as_it_is

EVALUATED = 100  # samples at a time: of images, 500 take twice the time for each


class TaskRows(Dataset[Any]):
    """Samples of a task, each a row of every tensor.

    >>> rows = TaskRows(torch.arange(6.0), torch.arange(6))
    >>> rows.__getitems__([4, 1])
    (tensor([4., 1.]), tensor([4, 1]))

    Args:
        tensors_N: with one row per sample.
        ready: from the rows of a batch to what is trained, e.g. bytes to floats.
    """

    def __init__(self, *tensors_N: Tensor, ready: Callable[..., Any] | None = None) -> None:
        self.tensors_N, self.ready = tensors_N, ready

    def __len__(self) -> int:
        return len(self.tensors_N[0])

    def __getitem__(self, index: int) -> Any:
        return tuple(member[0] for member in self.__getitems__([index]))

    def __getitems__(self, indices: Sequence[int]) -> Any:
        """The batch of some indices; what a `DataLoader` asks for."""
        rows_B = torch.as_tensor(indices)
        found = tuple(tensor_N[rows_B] for tensor_N in self.tensors_N)
        return found if self.ready is None else self.ready(*found)

    def some(self, rows: Tensor, *, ready: Callable[..., Any] | None = None) -> TaskRows:
        """Some of the samples."""
        found = (tensor_N[rows] for tensor_N in self.tensors_N)
        return TaskRows(*found, ready=ready or self.ready)

    def first(self, count: int) -> TaskRows:
        """The first of the samples, as many as there are."""
        return TaskRows(*(tensor_N[:count] for tensor_N in self.tensors_N), ready=self.ready)

    def in_order(self, size: int = EVALUATED) -> Iterator[Any]:
        """All samples from the first to the last."""
        for start in range(0, len(self), size):
            yield self.__getitems__(range(start, min(start + size, len(self))))


def loader(rows: TaskRows, size: int, seed: int) -> DataLoader[Any]:
    """Shuffled batches, the last incomplete one left out."""
    return DataLoader(
        rows,
        size,
        shuffle=True,
        drop_last=True,
        collate_fn=as_it_is,
        generator=torch.Generator().manual_seed(seed),
    )


def shuffled(count: int, *, seed: int) -> Tensor:
    """The numbers below `count`, in an order that the seed alone decides.

    >>> shuffled(4, seed=0).sort().values.tolist()
    [0, 1, 2, 3]
    """
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))
