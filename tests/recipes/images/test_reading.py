from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from PIL import Image

from sifting.recipes.images.batches import ImageBatches, plain_batches
from sifting.recipes.images.reading import (
    DataError,
    EncodedImages,
    Images,
    read_images,
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
    train, test = read_images(str(tmp_path), side=8)
    assert (len(train), len(test), train.classes) == (6, 3, 3)
    assert train.pixels_NCHW[2, :, 0, 0].tolist() == [40, 0, 255]
    assert train.labels_N.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_folder_per_class(tmp_path: Path) -> None:
    for split in ("train", "test"):
        for name, color in (("cat", (255, 0, 0)), ("dog", (0, 255, 0))):
            (tmp_path / split / name).mkdir(parents=True)
            for i in range(2):
                (tmp_path / split / name / f"{i}.png").write_bytes(encoded(color))
    train, _ = read_images(str(tmp_path), side=8)
    assert train.classes == 2
    assert sorted(train.labels_N.tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda p: None, "cannot read images from"),
        (
            lambda p: parquet(p, "train", rows(3)),
            r"has the splits \['train'\]: a 'train' and one of test",
        ),
        (
            lambda p: [
                parquet(p, n, [{**rows(1)[0], "image": {"bytes": b"no", "path": None}}])
                for n in ("train", "test")
            ],
            r"the image row 0 of 'train' cannot be read",
        ),
        (lambda p: (p / "train.parquet").write_bytes(b"damaged"), "cannot read images from"),
    ],
    ids=["empty", "one split", "undecodable", "damaged"],
)
def test_bad_data_is_named(make: Any, message: str, tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match=message):
        read_images(str(tmp_path), side=8)


def test_labels_outside_the_classes_name_the_row() -> None:
    with pytest.raises(DataError, match="row 1 has the label 7, but there are 3 classes"):
        Images(torch.zeros(2, 3, 4, 4, dtype=torch.uint8), torch.tensor([0, 7]), 3)


def some(count: int = 20) -> Images:
    g = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (count, 3, 8, 8), generator=g).to(torch.uint8)
    return Images(pixels, torch.arange(count) % 2, 2)


def test_batches_are_the_same_for_the_same_seed_and_new_each_epoch() -> None:
    def epochs(seed: int) -> list[Any]:
        batches = ImageBatches(some(), 6, seed=seed)
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
        ImageBatches(some(), 21, seed=0)


def test_an_epoch_can_be_entered_anywhere() -> None:
    whole = [b["pixel_values"] for b in ImageBatches(some(), 6, seed=4)]
    late = ImageBatches(some(), 6, seed=4)
    late.fast_forward(2)
    rest = [b["pixel_values"] for b in late]
    assert len(rest) == 1
    assert torch.equal(rest[0], whole[2])


def test_ranks_divide_each_batch() -> None:
    whole = ImageBatches(some(), 8, seed=4)
    halves = [ImageBatches(some(), 4, seed=4, rank=rank, world=2) for rank in (0, 1)]
    for batch, *parts in zip(whole, *halves, strict=True):
        for key in ("pixel_values", "labels", "index"):
            assert torch.equal(batch[key], torch.cat([part[key] for part in parts]))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Food-101's kind: a folder for each class, jpegs of odd sizes."""
    folder = tmp_path_factory.mktemp("large")
    generator = torch.Generator().manual_seed(0)
    for split, count in (("train", 9), ("test", 4)):
        for name in ("apple_pie", "waffles"):
            (folder / split / name).mkdir(parents=True)
            for i in range(count):
                size = 90 + 7 * i, 131 - 5 * i
                noise = torch.randint(0, 256, (size[1], size[0], 3), generator=generator)
                image = Image.fromarray(noise.to(torch.uint8).numpy())
                image.save(folder / split / name / f"{i}.jpg")
    return folder


def test_large_pictures_are_decoded_when_they_are_wanted(large: Path) -> None:
    train, test = read_images(str(large), side=72)
    assert isinstance(train, EncodedImages)
    assert (len(train), len(test), train.classes) == (18, 8, 2)
    kept, _ = read_images(str(large), side=72, keep=True)
    assert isinstance(kept, Images)
    small, _ = read_images(str(large), side=32)
    assert isinstance(small, Images)
    mean_C, deviation_C = train.statistics()
    assert mean_C.shape == deviation_C.shape == (3,)
    assert (mean_C - 0.5).abs().max() < 0.05
    batches = list(plain_batches(test, 5, statistics=train.statistics()))
    assert [len(labels) for _, labels in batches] == [5, 3]
    assert torch.cat([labels for _, labels in batches]).tolist() == test.labels_N.tolist()


def test_any_number_of_workers_makes_the_same_batches(large: Path) -> None:
    train, _ = read_images(str(large), side=72)

    def epochs(workers: int) -> list[dict[str, torch.Tensor]]:
        loader = ImageBatches(train, 4, seed=1, workers=workers)
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
        list(ImageBatches(train, 2, seed=0, statistics=statistics, workers=workers))


def unnamed(folder: Path, name: str, labels: list[Any], kind: str = "int64") -> None:
    """Parquet whose labels are plain values."""
    features = datasets.Features({"img": datasets.Image(), "label": datasets.Value(kind)})
    made = [{"img": {"bytes": encoded((0, 0, 9)), "path": None}, "label": y} for y in labels]
    datasets.Dataset.from_list(made, features=features).to_parquet(str(folder / f"{name}.parquet"))


def test_labels_in_the_test_that_training_does_not_have_name_the_row(tmp_path: Path) -> None:
    unnamed(tmp_path, "train", [0, 1, 2])
    unnamed(tmp_path, "test", [0, 1, 5])
    with pytest.raises(DataError, match="row 2 of 'test' has the label 5, but there are 3 classes"):
        read_images(str(tmp_path), side=8)


def test_classes_are_those_of_all_rows_where_some_are_taken(tmp_path: Path) -> None:
    unnamed(tmp_path, "train", [0, 1, 0, 2])
    unnamed(tmp_path, "test", [2, 0])
    train, test = read_images(str(tmp_path), side=8, limit=2)
    assert train.labels_N.tolist() == [0, 0]
    assert train.classes == test.classes == 3


@pytest.mark.parametrize(
    ("labels", "kind", "message"),
    [
        ([0, None, 1], "int64", "row 1 of 'train' has the label None: the number of a class"),
        (["cat", "dog"], "string", "row 0 of 'train' has the label 'cat': the number of a class"),
        ([0.5, 1.0], "float64", "row 0 of 'train' has the label 0.5"),
    ],
)
def test_labels_that_are_no_numbers_name_the_row(
    labels: list[Any], kind: str, message: str, tmp_path: Path
) -> None:
    unnamed(tmp_path, "train", labels, kind)
    unnamed(tmp_path, "test", labels, kind)
    with pytest.raises(DataError, match=message):
        read_images(str(tmp_path), side=8)


def test_a_bad_row_is_named_by_its_place_in_the_data_where_some_are_taken(tmp_path: Path) -> None:
    made = rows(6)
    made[3]["image"] = {"bytes": b"no image", "path": None}
    parquet(tmp_path, "train", made)
    parquet(tmp_path, "test", rows(3))
    with pytest.raises(DataError, match=r"^the image row 3 of 'train' cannot be read"):
        read_images(str(tmp_path), side=8, limit=2)
    unnamed(tmp_path, "train", [0, 0, 0, -7])
    unnamed(tmp_path, "test", [0])
    with pytest.raises(DataError, match=r"^row 3 of 'train' has the label -7"):
        read_images(str(tmp_path), side=8, limit=4)


def test_a_test_whose_labels_are_secret_gives_way_to_validation(tmp_path: Path) -> None:
    unnamed(tmp_path, "train", [0, 1, 2])
    unnamed(tmp_path, "test", [-1, -1])
    with pytest.raises(DataError, match="are needed, with labels"):
        read_images(str(tmp_path), side=8)
    unnamed(tmp_path, "validation", [0, 1, 2, 2])
    _, held_out = read_images(str(tmp_path), side=8)
    assert held_out.labels_N.tolist() == [0, 1, 2, 2]
