"""Batches of images: shuffled and augmented to train on, in order and plain to evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from sifting.recipes.batches import epoch_loader, in_order, uniforms
from sifting.recipes.images.reading import ImageSplit, Indices, Statistics
from sifting.recipes.images.transforms import CHANCES, normalised


def image_batches(
    data: ImageSplit,
    batch_size: int,
    *,
    seed: int,
    statistics: Statistics | None = None,
    workers: int = 0,
    rank: int = 0,
    world: int = 1,
) -> DataLoader[Any]:
    """Shuffled, augmented batches; the same for the same seed, epoch by epoch.

    >>> from sifting.recipes.images.reading import Images
    >>> data = Images(torch.zeros(10, 3, 8, 8, dtype=torch.uint8), torch.zeros(10).long(), 2)
    >>> [tuple(batch["pixel_values"].shape) for batch in image_batches(data, 4, seed=0)]
    [(4, 3, 8, 8), (4, 3, 8, 8)]

    Args:
        data: the images.
        batch_size: images a batch, on each rank; an incomplete last batch is left out.
        seed: of order and augmentation.
        statistics: mean and deviation to normalise by; the data's own by default.
        workers: processes that decode ahead; 0 for none, as suits images that are decoded.
        rank, world: see `EpochOrder`.
    """
    statistics = data.statistics() if statistics is None else statistics
    return epoch_loader(
        _Examples(data, statistics, augment=True),
        batch_size,
        seed=seed,
        workers=workers,
        rank=rank,
        world=world,
        kind="images",
    )


def plain_batches(
    data: ImageSplit, size: int, *, statistics: Statistics, workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """All images in order, not augmented, with their labels."""
    examples = _Examples(data, statistics, augment=False)
    for batch in in_order(examples, size, workers=workers):
        yield batch["pixel_values"], batch["labels"]


@dataclass(frozen=True)
class _Examples:
    data: ImageSplit
    statistics: Statistics
    augment: bool

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices_B: Indices, *, seed: int) -> dict[str, Tensor]:
        chances = uniforms(indices_B, CHANCES, seed=seed) if self.augment else None
        index_B = torch.from_numpy(indices_B)
        return {
            "pixel_values": normalised(self.data.pixels(indices_B, chances), *self.statistics),
            "labels": self.data.labels_N[index_B],
            "index": index_B,
        }
