from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from sifting.recipes.images.batches import plain_batches
from sifting.recipes.images.reading import (
    DataError,
    EncodedImages,
    Images,
    read_images,
)
from tests.helpers.images import encoded, parquet, rows, write_large


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


def test_large_pictures_are_decoded_when_they_are_wanted(tmp_path: Path) -> None:
    large = write_large(tmp_path)
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
