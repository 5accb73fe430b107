"""Batches of examples: the same for the same seed, on any number of workers, from any place.

An epoch draws one number from the loader's generator. Order, pairs and masks follow from that
number and from an example's index alone, so that no worker, rank or restart can change them.
Shapes: B examples, K random numbers of each, N examples in all.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from sifting.training.recipe import DataError

_GOLDEN, _ONE, _TWO = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = 2**64 - 1


class Examples(Protocol):
    """What batches are made of."""

    def __len__(self) -> int: ...

    def batch(self, indices_B: npt.NDArray[np.int64], *, seed: int) -> dict[str, Tensor]:
        """Examples by their indices, as they are in the epoch of this seed."""
        ...


def uniforms(
    indices_B: npt.NDArray[np.int64], count: int, *, seed: int, stream: int = 0
) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) for each index, whatever other indices are asked for with it.

    >>> one = uniforms(np.array([3, 5]), 2, seed=1)
    >>> bool((one[1] == uniforms(np.array([5]), 2, seed=1)[0]).all()), one.shape
    (True, (2, 2))

    Args:
        indices_B: of examples.
        count: numbers for each.
        seed: of the epoch.
        stream: numbers of different streams have nothing to do with each other.
    """
    keys = np.array([seed & _WORD, stream], dtype=np.uint64)
    start = _mixed(_mixed(keys[:1]) + keys[1:] * np.uint64(_GOLDEN))
    rows_B = _mixed(start + _mixed(indices_B.astype(np.uint64)))
    steps_K = (np.arange(1, count + 1, dtype=np.uint64)) * np.uint64(_GOLDEN)
    bits_BK = _mixed(rows_B[:, None] + steps_K)
    return (bits_BK >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of SplitMix64: every bit of the input changes half of the output's."""
    x = (x + np.uint64(_GOLDEN)).astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_ONE)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_TWO)
    return x ^ (x >> np.uint64(31))


class Batches:
    """Shuffled batches of one epoch.

    >>> class Numbers:
    ...     def __len__(self): return 10
    ...     def batch(self, indices_B, *, seed): return {"input_ids": torch.tensor(indices_B)}
    >>> loader = Batches(Numbers(), 4, seed=0)
    >>> whole = [batch["input_ids"].tolist() for batch in loader]
    >>> again = Batches(Numbers(), 4, seed=0)
    >>> again.fast_forward(1)
    >>> [batch["input_ids"].tolist() for batch in again] == whole[1:]
    True

    Args:
        examples: what to take batches from.
        batch_size: examples a batch, on each rank; an incomplete last batch is left out.
        seed: of all epochs.
        workers: processes that make batches ahead; 0 makes them here.
        rank, world: this process and how many there are; each takes its slice of every batch of
            `batch_size` × `world`.
    """

    drop_last = True
    kind = "examples"  # in words
    remedy = "or more of them"  # where a batch is too large

    def __init__(
        self,
        examples: Examples,
        batch_size: int,
        *,
        seed: int,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        if not 0 <= rank < world:
            raise DataError(f"rank={rank} of world={world}: ranks go from 0 to {world - 1}")
        if workers < 0:
            raise DataError(f"workers={workers}: give 0 or more")
        if not 1 <= batch_size * world <= len(examples):
            raise DataError(
                f"batches of {batch_size} on {world} ranks from {len(examples)} {self.kind}: choose a "
                f"batch from 1 to {len(examples) // world}, {self.remedy}"
            )
        self.dataset, self.batch_size, self.workers = examples, batch_size, workers
        self.rank, self.world = rank, world
        self.generator = torch.Generator().manual_seed(seed)
        self._skipped = 0

    def __len__(self) -> int:
        return len(self.dataset) // (self.batch_size * self.world)

    def fast_forward(self, count: int) -> None:
        """Leave out the first `count` batches of the next epoch; they are not made."""
        if not 0 <= count <= len(self):
            raise DataError(f"cannot skip {count} batches of an epoch that has {len(self)}")
        self._skipped = count

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        start, self._skipped = self._skipped, 0
        seed = int(torch.randint(2**62, (), generator=self.generator))
        order_N = torch.randperm(
            len(self.dataset), generator=torch.Generator().manual_seed(seed)
        ).numpy()
        size = self.batch_size * self.world
        own = slice(self.rank * self.batch_size, (self.rank + 1) * self.batch_size)
        plan = _EpochBatches(
            self.dataset,
            [order_N[b * size : (b + 1) * size][own] for b in range(start, len(self))],
            seed,
        )
        return _made(plan, self.workers)


class TextBatches(Batches):
    """Shuffled batches of sequences."""

    kind = "sequences"
    remedy = "shorter sequences, or more text"


def in_order(examples: Examples, size: int, *, workers: int = 0) -> Iterator[dict[str, Tensor]]:
    """All examples from the first to the last, `size` at a time; the last batch may be smaller."""
    return _made(_EpochBatches(examples, np.split(*_cuts(len(examples), size)), seed=0), workers)


def _cuts(count: int, size: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    return np.arange(count), np.arange(size, count, size)


def _made(plan: _EpochBatches, workers: int) -> Iterator[dict[str, Tensor]]:
    """The batches of a plan, made ahead by workers where there are any."""
    source: Any = (plan[number] for number in range(len(plan)))
    if workers:
        source = DataLoader(
            plan,
            batch_size=None,
            num_workers=workers,
            generator=torch.Generator(),  # else it would draw from the global stream
            worker_init_fn=_leave_signals,
        )
    return map(_sound, source)


def _leave_signals(worker: int) -> None:
    """Ctrl-C and SIGTERM often go to all processes: the run stops, and its workers with it.

    A worker that ended by itself would end the run at once, with nothing saved.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)


def _sound(batch: dict[str, Tensor] | DataError) -> dict[str, Tensor]:
    if isinstance(batch, DataError):
        raise batch
    return batch


class _EpochBatches(Dataset[Any]):
    """The batches of one epoch by number."""

    def __init__(self, examples: Examples, rows: list[npt.NDArray[np.int64]], seed: int) -> None:
        self.examples, self.rows, self.seed = examples, rows, seed

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, number: int) -> dict[str, Tensor] | DataError:
        try:
            return self.examples.batch(self.rows[number], seed=self.seed)
        except DataError as error:
            return error  # raised where it is met: out of a worker it would come as a traceback
