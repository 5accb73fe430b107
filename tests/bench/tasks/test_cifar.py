from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from sifting.bench.tasks import cifar
from sifting.bench.tasks.rows import Rows


def test_the_cache_of_images_is_made_once_and_again_where_it_is_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[str] = []
    images = torch.randint(0, 256, (6, 3, 4, 4), dtype=torch.uint8), torch.arange(6)

    def decoded(source: str) -> Any:
        made.append(source)
        return Rows(*images), Rows(*(part[:2] for part in images))

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
