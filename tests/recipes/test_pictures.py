from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from PIL import Image

from sifting.recipes.pictures import (
    DataError,
    PictureBatches,
    Pictures,
    augmented,
    decode,
    read_pictures,
)


def encoded(color: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, color).save(buffer, "PNG")
    return buffer.getvalue()


def parquet(folder: Path, name: str, rows: list[dict[str, Any]], classes: int = 3) -> None:
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(num_classes=classes),
        }
    )
    datasets.Dataset.from_list(rows, features=features).to_parquet(str(folder / f"{name}.parquet"))


def rows(count: int) -> list[dict[str, Any]]:
    return [
        {"image": {"bytes": encoded((i * 20, 0, 255)), "path": None}, "label": i % 3}
        for i in range(count)
    ]


def test_parquet_with_the_image_schema(tmp_path: Path) -> None:
    parquet(tmp_path, "train", rows(6))
    parquet(tmp_path, "test", rows(3))
    train, test = read_pictures(str(tmp_path), side=8)
    assert (len(train), len(test), train.classes) == (6, 3, 3)
    assert train.pixels_NCHW[2, :, 0, 0].tolist() == [40, 0, 255]
    assert train.labels_N.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_folder_per_class(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name, color in (("cat", (255, 0, 0)), ("dog", (0, 255, 0))):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(2):
                (tmp_path / split / name / f"{i}.png").write_bytes(encoded(color))
    train, _ = read_pictures(str(tmp_path), side=8)
    assert train.classes == 2
    assert sorted(train.labels_N.tolist()) == [0, 0, 1, 1]


def test_pictures_are_resized_by_the_shorter_side_and_cut_square() -> None:
    wide = Image.new("RGB", (40, 10), (0, 0, 0))
    wide.paste((255, 255, 255), (15, 0, 25, 10))  # a white square in the middle
    buffer = io.BytesIO()
    wide.save(buffer, "PNG")
    assert decode(buffer.getvalue(), 10).float().mean() > 250


UNREADABLE = [{"image": {"bytes": b"no picture", "path": None}, "label": 0}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "cannot read pictures from"),
        (
            lambda p: parquet(p, "train", rows(3)),
            r"has the splits \['train'\]: a 'train' and one of test",
        ),
        (
            lambda p: [
                parquet(p, n, [{**rows(1)[0], "image": {"bytes": b"no", "path": None}}])
                for n in ("train", "test")
            ],
            r"the picture row 0 of 'train' cannot be read",
        ),
        (lambda p: (p / "train.parquet").write_bytes(b"damaged"), "cannot read pictures from"),
    ],
    ids=["empty", "one split", "undecodable", "damaged"],
)
def test_bad_data_is_named(make: Any, message: str, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=message):
        read_pictures(str(tmp_path), side=8)


def test_labels_outside_the_classes_name_the_row() -> None:
    with pytest.raises(DataError, match="row 1 has the label 7, but there are 3 classes"):
        Pictures(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 7]), 3)


def some(count: int = 20) -> Pictures:
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 8, 8), generator=g).to(torch.uint8)
    return Pictures(pixels, torch.arange(count) % 2, 2)


def test_batches_are_the_same_for_the_same_seed_and_new_each_epoch() -> None:
    def epochs(seed: int) -> list[Any]:
        batches = PictureBatches(some(), 6, seed=seed)
        return [[b["pixel_values"] for b in batches] for _ in range(2)]

    one, two, other = epochs(1), epochs(1), epochs(2)
    assert all(
        torch.equal(a, b) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True)
    )
    assert not torch.equal(one[0][0], one[1][0])
    assert not torch.equal(one[0][0], other[0][0])
    assert one[0][0].is_contiguous(memory_format=torch.channels_last)


def test_every_crop_is_a_window_of_the_padded_picture_or_its_mirror() -> None:
    pixels = some(40).pixels_NCHW
    out = augmented(pixels, 2, torch.Generator().manual_seed(3))
    padded = torch.nn.functional.pad(pixels.float(), (2,) * 4, mode="reflect").to(torch.uint8)
    mirrored = torch.nn.functional.pad(pixels.flip(-1).float(), (2,) * 4, mode="reflect").to(
        torch.uint8
    )
    for i in range(40):
        windows = [
            source[i, :, t : t + 8, left : left + 8]
            for source in (padded, mirrored)
            for t in range(5)
            for left in range(5)
        ]
        assert any(torch.equal(out[i], window) for window in windows)


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(DataError, match="batches of 21 from 20 pictures"):
        PictureBatches(some(), 21, seed=0)
