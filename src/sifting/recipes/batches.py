"""Batches of examples: the same for the same seed, on any number of workers, from any place.

An epoch draws one number from its order's generator. Order, pairs and masks follow from that number and
from an example's index alone, and the sampler draws both, so that no worker, rank or restart can change them.
Shapes: B examples, K random numbers of each, N examples in all.
"""

from __future__ import annotations

import signal
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

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


class EpochOrder(Sampler[list[tuple[int, int]]]):
    """Batches of one epoch as pairs: the index of an example, and the seed of its epoch.

    >>> order = EpochOrder(10, 4, seed=0)
    >>> [[index for index, _ in batch] for batch in order]
    [[6, 9, 0, 7], [3, 5, 4, 2]]

    Args:
        count: examples in all.
        batch_size: examples a batch, on each rank; an incomplete last batch is left out.
        seed: of all epochs.
        rank, world: this process and how many there are; each takes its slice of every batch of
            `batch_size` × `world`.
    """

    drop_last = True

    def __init__(
        self, count: int, batch_size: int, *, seed: int, rank: int = 0, world: int = 1
    ) -> None:
        self.sampler, self.batch_size = range(count), batch_size
        self.rank, self.num_replicas = rank, world
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.sampler) // (self.batch_size * self.num_replicas)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        seed = int(torch.randint(2**62, (), generator=self.generator))
        order_N = torch.randperm(
            len(self.sampler), generator=torch.Generator().manual_seed(seed)
        ).numpy()
        size = self.batch_size
        every, first = size * self.num_replicas, size * self.rank
        starts = range(first, first + every * len(self), every)
        for at in starts:  # a generator: a loader with workers begins twice, and draws once
            yield [(index, seed) for index in order_N[at : at + size].tolist()]


class EpochData(Dataset[Any]):
    """Examples by index and seed; by index alone they are those of seed 0."""

    def __init__(self, examples: Examples) -> None:
        self.examples = examples

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, drawn: Any) -> dict[str, Tensor]:
        return {name: value_B[0] for name, value_B in self.__getitems__([drawn]).items()}

    def __getitems__(self, drawn: Sequence[Any]) -> dict[str, Tensor]:
        """A batch; its examples may be of several epochs."""
        rows = defaultdict[int, list[int]](list)
        for row, one in enumerate(drawn):
            rows[one[1] if isinstance(one, tuple) else 0].append(row)
        indices_B = np.array([self.sample_id(one) for one in drawn], dtype=np.int64)
        made = [self.examples.batch(indices_B[those], seed=seed) for seed, those in rows.items()]
        if len(made) == 1:
            return made[0]
        places_B = torch.tensor([row for those in rows.values() for row in those]).argsort()
        return {name: torch.cat([part[name] for part in made])[places_B] for name in made[0]}

    def sample_id(self, drawn: Any) -> int:
        """The index, by which a sample is known from epoch to epoch."""
        return int(drawn[0] if isinstance(drawn, tuple) else drawn)


def epoch_loader(
    examples: Examples,
    batch_size: int,
    *,
    seed: int,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
    kind: str = "examples",
    remedy: str = "or more of them",
) -> DataLoader[Any]:
    """Shuffled batches, epoch by epoch.

    >>> class Numbers:
    ...     def __len__(self): return 10
    ...     def batch(self, indices_B, *, seed): return {"input_ids": torch.tensor(indices_B)}
    >>> [batch["input_ids"].tolist() for batch in epoch_loader(Numbers(), 4, seed=0)]
    [[6, 9, 0, 7], [3, 5, 4, 2]]

    Args:
        examples: what to take batches from.
        batch_size, seed, rank, world: see `EpochOrder`.
        workers: processes that make batches ahead; 0 makes them here.
        kind: of examples, in words.
        remedy: in words, where a batch is too large.
    """
    if not 0 <= rank < world:
        raise DataError(f"rank={rank} of world={world}: ranks go from 0 to {world - 1}")
    if workers < 0:
        raise DataError(f"workers={workers}: give 0 or more")
    if not 1 <= batch_size * world <= len(examples):
        raise DataError(
            f"batches of {batch_size} on {world} ranks from {len(examples)} {kind}: choose a "
            f"batch from 1 to {len(examples) // world}, {remedy}"
        )
    return DataLoader(
        EpochData(examples),
        batch_sampler=EpochOrder(len(examples), batch_size, seed=seed, rank=rank, world=world),
        collate_fn=as_it_is,
        num_workers=workers,
        generator=torch.Generator(),  # else it would draw from the global stream
        worker_init_fn=leave_signals,
    )


def in_order(examples: Examples, size: int, *, workers: int = 0) -> DataLoader[Any]:
    """All examples from the first to the last, `size` at a time; the last batch may be smaller."""
    return DataLoader(
        EpochData(examples),
        size,
        collate_fn=as_it_is,
        num_workers=workers,
        generator=torch.Generator(),
        worker_init_fn=leave_signals,
    )


def as_it_is(batch: Any) -> Any:
    """Batches are collated by the look-up already."""
    return batch


def leave_signals(worker: int) -> None:
    """Ctrl-C and SIGTERM often go to all processes: the run stops, and its workers with it.

    A worker that ended by itself would end the run at once, with nothing saved.
    """
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
