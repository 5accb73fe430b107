"""CIFAR-10 and a narrow ResNet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sifting.bench.tasks import cifar
from sifting.bench.tasks.cifar import EARLY, FITTED, NarrowResNet, plain, varied
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
