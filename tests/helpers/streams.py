"""Streams of numbered samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import IterableDataset


class Stream(IterableDataset[Any]):
    """Numbered samples; the last column is drawn at random when a sample is read."""

    def __iter__(self) -> Iterator[Any]:
        yield from map(sample, range(22))


def sample(i: int) -> tuple[Tensor, Tensor]:
    return torch.cat([torch.full((4,), float(i)), torch.rand(1)]), torch.tensor(i % 3)


class Placed(Stream):
    """A stream that can continue from a place, and knows what was read of it."""

    def __init__(self) -> None:
        self.at, self.start, self.read = 0, 0, list[int]()

    def __iter__(self) -> Iterator[Any]:
        self.at, self.start = self.start, 0
        while self.at < 22:
            self.read.append(self.at)
            self.at += 1
            yield sample(self.at - 1)

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.start = state["at"]
