from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pytest

from sifting.bench.tasks.idx import read_idx
from sifting.training.recipe import DataError


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(gzip.compress(content))
    return path


def header(*shape: int, kind: int = 8) -> bytes:
    return bytes([0, 0, kind, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


def test_an_array_is_read_in_its_shape(tmp_path: Path) -> None:
    path = written(tmp_path / "a.gz", header(2, 3) + bytes(range(6)))
    assert read_idx(path).tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header(2, 3) + bytes(5), "has 5 bytes of data, and its header says 6"),
        (header(2, kind=13) + bytes(8), "is not an array of bytes"),
        (header(2, 3)[:6], "ends within its header"),
        (b"", "is not an array of bytes"),
    ],
)
def test_what_is_damaged_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = written(tmp_path / "a.gz", content)
    with pytest.raises(DataError, match=f"a.gz {message}"):
        read_idx(path)


def test_a_file_that_is_no_archive_is_named(tmp_path: Path) -> None:
    path = tmp_path / "b.gz"
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"cannot read .*b.gz"):
        read_idx(path)
