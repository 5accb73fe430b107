"""CIFAR-10 and a narrow ResNet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from sifting.bench.tasks import cifar
from sifting.bench.tasks.cifar import EARLY, FITTED, NarrowResNet, plain, varied
from sifting.bench.tasks.rows import TaskRows
from tests.helpers.images import parquet, rows


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A CIFAR-10 of a few images, and a cache of its own."""
    place = tmp_path / "cifar10"
    place.mkdir()
    parquet(place, "train", rows(40))
    parquet(place, "test", rows(6))
    monkeypatch.setenv("SIFT_DATA", str(tmp_path))
    monkeypatch.setenv("SIFT_CACHE", str(tmp_path / "cache"))
    return place


def test_images_are_decoded_once_and_found_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EARLY.presets["full"]
    first = EARLY.read(config)
    assert (len(first.train), len(first.held_out), len(first.test)) == (36, 4, 6)

    def again(source: str) -> None:
        raise AssertionError("it is read from the cache")

    monkeypatch.setattr(cifar, "_decoded", again)
    second = EARLY.read(config)
    assert torch.equal(first.train.tensors_N[0], second.train.tensors_N[0])
    assert len(EARLY.read(replace(config, samples=10)).train) == 10


def test_only_training_images_are_varied() -> None:
    pixels = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8)
    labels = torch.arange(6)
    assert torch.equal(plain(pixels, labels)[0], plain(pixels, labels)[0])
    assert not torch.equal(varied(pixels, labels)[0], varied(pixels, labels)[0])
    torch.manual_seed(0)
    one = varied(pixels, labels)[0]
    torch.manual_seed(0)
    assert torch.equal(one, varied(pixels, labels)[0]), "by torch's own stream"
    assert FITTED.presets["full"].augment is False


def test_the_network_has_three_stages_of_growing_width() -> None:
    model = NarrowResNet(4)
    out: list[tuple[int, ...]] = []
    for stage in (model.layer1, model.layer2, model.layer3):
        stage.register_forward_hook(lambda m, a, o: out.append(tuple(o.shape[1:])))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 10)
    assert out == [(4, 16, 16), (8, 8, 8), (16, 4, 4)]


def test_the_cache_of_images_is_made_once_and_again_where_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []
    images = torch.randint(0, 256, (6, 3, 4, 4), dtype=torch.uint8), torch.arange(6)

    def decoded(source: str) -> Any:
        made.append(source)
        return TaskRows(*images), TaskRows(*(part[:2] for part in images))

    folder = tmp_path / "cifar10"
    folder.mkdir()
    (folder / "train.parquet").write_text("as if")
    monkeypatch.setenv("SIFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(cifar, "find_data", lambda name: folder)
    monkeypatch.setattr(cifar, "_decoded", decoded)
    config = cifar.CifarConfig()
    for _ in range(2):
        train, test = cifar.read_files(config)
        assert torch.equal(train.tensors_N[0], images[0])
        assert torch.equal(test.tensors_N[1], images[1][:2])
    assert len(made) == 1
    (cached,) = (tmp_path / "cache").glob("images-*.pt")
    source = bytearray(cached.read_bytes())
    source[len(source) // 2] ^= 1
    cached.write_bytes(source)
    with caplog.at_level("INFO", logger="sifting"):
        train, _ = cifar.read_files(config)
    assert torch.equal(train.tensors_N[0], images[0])
    assert len(made) == 2
    assert f"{cached.name} is not as it was written" in caplog.text
    assert "it is made again" in caplog.text
