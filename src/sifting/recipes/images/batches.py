"""Batches of images: shuffled and augmented to train on, in order and plain to evaluate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from sifting.recipes.batches import Batches, in_order, uniforms
from sifting.recipes.images.reading import ImageSplit, Indices, Statistics
from sifting.recipes.images.transforms import CHANCES, normalised


class ImageBatches(Batches):
    """Shuffled, augmented batches of one epoch; the same for the same seed, epoch by epoch.

    >>> from sifting.recipes.images.reading import Images
    >>> data = Images(torch.zeros(10, 3, 8, 8, dtype=torch.uint8), torch.zeros(10).long(), 2)
    >>> [tuple(batch["pixel_values"].shape) for batch in ImageBatches(data, 4, seed=0)]
    [(4, 3, 8, 8), (4, 3, 8, 8)]

    Args:
        data: the images.
        batch_size: images a batch, on each rank; an incomplete last batch is left out.
        seed: of order and augmentation.
        statistics: mean and deviation to normalise by; the data's own by default.
        workers: processes that decode ahead; 0 for none, as suits images that are decoded.
        rank, world: see `Batches`.
    """

    kind = "images"

    def __init__(
        self,
        data: ImageSplit,
        batch_size: int,
        *,
        seed: int,
        statistics: Statistics | None = None,
        workers: int = 0,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        super().__init__(
            _Examples(data, augment=True),
            batch_size,
            seed=seed,
            workers=workers,
            rank=rank,
            world=world,
        )
        self.statistics = data.statistics() if statistics is None else statistics

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        # here and not by the workers: bytes are a quarter of what would have to travel
        return map(self._finished, super().__iter__())

    def _finished(self, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        return {**batch, "pixel_values": normalised(batch["pixel_values"], *self.statistics)}


def plain_batches(
    data: ImageSplit, size: int, *, statistics: Statistics, workers: int = 0
) -> Iterator[tuple[Tensor, Tensor]]:
    """All images in order, not augmented, with their labels."""
    for batch in in_order(_Examples(data, augment=False), size, workers=workers):
        yield normalised(batch["pixel_values"], *statistics), batch["labels"]


@dataclass(frozen=True)
class _Examples:
    data: ImageSplit
    augment: bool

    def __len__(self) -> int:
        return len(self.data)

    def batch(self, indices_B: Indices, *, seed: int) -> dict[str, Tensor]:
        chances = uniforms(indices_B, CHANCES, seed=seed) if self.augment else None
        index_B = torch.from_numpy(indices_B)
        return {
            "pixel_values": self.data.pixels(indices_B, chances),
            "labels": self.data.labels_N[index_B],
            "index": index_B,
        }
