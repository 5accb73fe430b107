"""Batches of images: shuffled and augmented, or in order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sifting.recipes.images.batches import image_batches
from sifting.recipes.images.reading import (
    DataError,
    Images,
    read_images,
)
from tests.helpers.images import parquet, rows, write_large


def some(count: int = 20) -> Images:
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 8, 8), generator=g).to(torch.uint8)
    return Images(pixels, torch.arange(count) % 2, 2)


def test_batches_are_the_same_for_the_same_seed_and_new_each_epoch() -> None:
    def epochs(seed: int) -> list[Any]:
        batches = image_batches(some(), 6, seed=seed)
        return [[b["pixel_values"] for b in batches] for _ in range(2)]

    one, two, other = epochs(1), epochs(1), epochs(2)
    assert all(
        torch.equal(a, b) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True)
    )
    assert not torch.equal(one[0][0], one[1][0])
    assert not torch.equal(one[0][0], other[0][0])
    assert one[0][0].is_contiguous(memory_format=torch.channels_last)


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(DataError, match="batches of 21 on 1 ranks from 20 images"):
        image_batches(some(), 21, seed=0)


def test_ranks_divide_each_batch() -> None:
    whole = image_batches(some(), 8, seed=4)
    halves = [image_batches(some(), 4, seed=4, rank=rank, world=2) for rank in (0, 1)]
    for batch, *parts in zip(whole, *halves, strict=True):
        for key in ("pixel_values", "labels", "index"):
            assert torch.equal(batch[key], torch.cat([part[key] for part in parts]))


def test_any_number_of_workers_makes_the_same_batches(tmp_path: Path) -> None:
    large = write_large(tmp_path)
    train, _ = read_images(str(large), side=72)

    def epochs(workers: int) -> list[dict[str, torch.Tensor]]:
        loader = image_batches(train, 4, seed=1, workers=workers)
        return [batch for _ in range(2) for batch in loader]

    before = torch.get_rng_state()
    alone, two = epochs(0), epochs(2)
    assert torch.equal(torch.get_rng_state(), before)
    assert len(alone) == len(two) == 8
    for a, b in zip(alone, two, strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)
    assert torch.equal(alone[0]["labels"], train.labels_N[alone[0]["index"]])


@pytest.mark.parametrize("workers", [0, 1])
def test_a_worker_that_meets_an_undecodable_picture_names_it(tmp_path: Path, workers: int) -> None:
    made = rows(4)
    made[2]["image"] = {"bytes": b"no image", "path": None}
    for name in ("train", "test"):
        parquet(tmp_path, name, made)
    train, _ = read_images(str(tmp_path), side=8, keep=False)
    statistics = torch.zeros(3), torch.ones(3)
    with pytest.raises(
        DataError, match=r"^the image row 2 of 'train' cannot be read: cannot identify"
    ):
        list(image_batches(train, 2, seed=0, statistics=statistics, workers=workers))
