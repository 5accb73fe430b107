from __future__ import annotations

import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from sifting import checksums, files


def test_what_is_written_is_read_and_nothing_else_is_left(tmp_path: Path) -> None:
    files.write_bytes(tmp_path / "a", b"1")
    files.write_text(tmp_path / "b", "ü")
    files.write_json(tmp_path / "c", {"x": 1})
    checksums.write_state(tmp_path / "d", {"w": torch.ones(2)})
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c", "d"]
    assert (tmp_path / "b").read_text(encoding="utf-8") == "ü"
    assert torch.load(tmp_path / "d", weights_only=True)["w"].tolist() == [1.0, 1.0]


def test_a_digest_is_told_every_byte(tmp_path: Path) -> None:
    digest = hashlib.sha256()
    files.write_json(tmp_path / "file", {"w": 1}, digest=digest)
    assert digest.digest() == hashlib.sha256((tmp_path / "file").read_bytes()).digest()


@pytest.mark.parametrize("point", ["write", "fsync", "replace"])
@pytest.mark.parametrize("write", [checksums.write_state, checksums.write_json])
def test_a_write_that_fails_anywhere_leaves_what_was_there(
    point: str, write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "file"
    path.write_text("before")

    def full(*args: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        if point == "write":

            class Full:
                def __init__(self, descriptor: int) -> None:
                    self.close = lambda: os.close(descriptor)
                    self.write = self.flush = full

            patch.setattr(files.os, "fdopen", lambda descriptor, mode: Full(descriptor))
        else:
            patch.setattr(files.os, point, full)
        with pytest.raises(OSError, match="No space left") as failed:
            write(path, {"w": 1})
    assert str(path) in str(failed.value), "the disk does not say of which file it was"
    assert path.read_text() == "before"
    assert os.listdir(tmp_path) == ["file"]


def test_neither_a_planted_link_nor_the_target_being_one_reaches_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    monkeypatch.setattr(files.secrets, "token_hex", lambda count: "00")
    (tmp_path / ".file.00.part").symlink_to(other)
    with pytest.raises(FileExistsError):
        files.write_text(tmp_path / "file", "x")
    (tmp_path / ".file.00.part").unlink()
    (tmp_path / "file").symlink_to(other)
    files.write_text(tmp_path / "file", "x")
    assert (other.read_text(), (tmp_path / "file").read_text()) == ("precious", "x")
    assert not (tmp_path / "file").is_symlink()


def test_what_a_killed_process_left_is_dropped_and_links_are_not_followed(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / ".run.json.1234.part").write_text("half")
    (tmp_path / ".log.1234.part").symlink_to(other)
    files.drop_parts(tmp_path)
    assert os.listdir(tmp_path) == ["other"]


def test_whether_a_folder_can_be_written_is_found_without_making_it(tmp_path: Path) -> None:
    files.check_writable(tmp_path / "a" / "b")
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError):
        files.check_writable(tmp_path / "file" / "run")


def test_appending_is_all_or_nothing_and_follows_no_link(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, write = tmp_path / "log", os.write
    files.append(log, b"one\n", size=0)
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "write", lambda file, data: write(file, data[:2]))
        with pytest.raises(OSError, match=r"No space left on device: .*log"):
            files.append(log, b"two\n", size=4)
    assert log.read_bytes() == b"one\n"
    files.append(log, b"two\n", size=4)
    assert log.read_bytes() == b"one\ntwo\n"
    (tmp_path / "link").symlink_to(log)
    with pytest.raises(OSError, match="link"):
        files.append(tmp_path / "link", b"three\n", size=0)
    assert log.read_bytes() == b"one\ntwo\n"
