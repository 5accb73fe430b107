"""Loaders of every kind over one small data set that knows what was read of it."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    Sampler,
    WeightedRandomSampler,
)

from sifting import Sifter
from sifting.rng import RandomState


class Counted(Dataset[Any]):
    """Sample i starts with i; the last column is drawn at random when it is read, unless `alike`."""

    def __init__(self, samples: int = 37, *, alike: bool = False) -> None:
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(samples, 4, generator=generator)
        self.x[:, 0] = torch.arange(samples)
        self.y = torch.randint(0, 3, (samples,), generator=generator)
        self.read: list[int] = []
        self.alike = alike

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        self.read.append(int(index))
        drawn = torch.rand(1)
        last = torch.zeros(1) if self.alike else drawn
        return torch.cat([self.x[index], last]), self.y[index]


class Varying(Sampler[list[int]]):
    """Batches of 1 to 5, their order drawn as soon as an iteration begins."""

    def __init__(self, samples: int) -> None:
        self.sizes = [1 + place % 5 for place in range(samples // 3)]
        self.samples = samples

    def __len__(self) -> int:
        return len(self.sizes)

    def __iter__(self) -> Iterator[list[int]]:
        order = random.sample(range(self.samples), self.samples) * 2
        starts = np.cumsum([0, *self.sizes])
        return iter([order[a:b] for a, b in pairwise(starts)])


class Shuffled(Sampler[Any]):
    """An order drawn by NumPy, whose numbers are NumPy's."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[Any]:
        return iter(np.random.permutation(self.samples))  # noqa: NPY002 - as users do


class Own(Sampler[int]):
    """An order drawn by a generator of its own, which goes on from epoch to epoch."""

    def __init__(self, samples: int) -> None:
        self.samples, self.rng = samples, np.random.default_rng(5)

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        yield from self.rng.permutation(self.samples).tolist()


class Tensors(Sampler[Any]):
    """Batches of indices as tensors."""

    def __init__(self, samples: int, size: int) -> None:
        self.samples, self.size = samples, size

    def __len__(self) -> int:
        return -(-self.samples // self.size)

    def __iter__(self) -> Iterator[Any]:
        yield from torch.randperm(self.samples).split(self.size)


class Grouped(Sampler[int]):
    """Shuffled, then sorted by length within each dozen, as trainers group sequences."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __iter__(self) -> Iterator[int]:
        for dozen in torch.randperm(self.samples).split(12):
            yield from sorted(dozen.tolist(), key=length_of, reverse=True)


def length_of(index: int) -> int:
    """As if sample i were a sequence: how long it is."""
    return 1 + 7 * index % 5


KINDS = (
    *("ordered", "shuffled", "generator", "drop_last", "distributed", "weighted"),
    *("replacement", "varying", "numpy", "tensors", "grouped", "own"),
)
PERMUTED = tuple(
    kind for kind in KINDS if kind not in ("drop_last", "weighted", "replacement", "varying")
)


def make_loader(
    kind: str, data: Dataset[Any], size: int = 5, *, cls: Any = DataLoader, **options: Any
) -> DataLoader[Any]:
    """A loader of a class, `DataLoader` by default, that draws its samples in one way or another."""
    samples = len(data)  # type: ignore[arg-type]
    generator = torch.Generator().manual_seed(3)
    if kind == "varying":
        return cls(data, batch_sampler=Varying(samples), **options)
    if kind == "tensors":
        return cls(data, batch_sampler=Tensors(samples, size), **options)
    if kind == "shuffled":
        options["shuffle"] = True
    elif kind == "generator":
        options |= {"shuffle": True, "generator": generator}
    elif kind == "drop_last":
        options |= {"shuffle": True, "drop_last": True}
    elif kind == "distributed":
        options["sampler"] = DistributedSampler(data, num_replicas=2, rank=1, seed=4)
    elif kind == "weighted":
        weights = torch.arange(samples).float()
        options["sampler"] = WeightedRandomSampler(weights, samples, generator=generator)
    elif kind == "replacement":
        options["sampler"] = RandomSampler(data, replacement=True, generator=generator)
    elif kind == "numpy":
        options["sampler"] = Shuffled(samples)
    elif kind == "own":
        options["sampler"] = Own(samples)
    elif kind == "grouped":
        options["sampler"] = Grouped(samples)
    return cls(data, size, **options)


def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 4), nn.Linear(4, 3))


def seed_everything(seed: int = 7) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002


def walk(
    batches: Any,
    loader: DataLoader[Any],
    net: nn.Module,
    *,
    epoch: int = 0,
    stop: int | None = None,
    draws: int = 3,
) -> list[list[list[float]]]:
    """An epoch: every batch as numbers. The step draws at random too, as dropout would."""
    if hasattr(loader.sampler, "set_epoch"):
        loader.sampler.set_epoch(epoch)
    found = []
    for x, y in batches:
        net(x)
        torch.rand(draws)
        found.append(torch.cat([x, y[:, None]], dim=1).tolist())
        if len(found) == stop:
            break
    return found


def ids(epoch: list[list[list[float]]]) -> list[list[int]]:
    return [[int(row[0]) for row in batch] for batch in epoch]


def streams() -> Any:
    state = RandomState.now()
    return state.torch.tolist(), state.python, state.numpy[1].tolist(), state.numpy[2]


def through_a_file(sifter: Sifter) -> Any:
    """A state as a checkpoint gives it back."""
    file = io.BytesIO()
    torch.save(sifter.state_dict(), file)
    file.seek(0)
    return torch.load(file, weights_only=True)
