"""A folder for what is made once and used by many runs."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from sifting.checksums import Damaged
from sifting.recipes.cache import alone, cache_folder, drop_damaged, read_record, write_record
from sifting.training.recipe import DataError


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="set SIFT_CACHE to a folder that can be written"):
        cache_folder(tmp_path / "file" / "cache")


def entry(folder: Path) -> Path:
    path = folder / "entry"
    path.mkdir(parents=True)
    (path / "tokens.bin").write_bytes(b"12345")
    write_record(path, "about.json", {"count": 5}, ["tokens.bin"])
    return path


def test_the_folder_is_the_one_given_or_that_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cache_folder(tmp_path / "own") == tmp_path / "own"
    monkeypatch.setenv("SIFT_CACHE", str(tmp_path / "env"))
    assert cache_folder() == tmp_path / "env"
    assert (tmp_path / "env").is_dir()
    assert list((tmp_path / "env").iterdir()) == [], "nothing of the probe is left"


def test_an_entry_is_held_against_its_checksums(tmp_path: Path) -> None:
    path = entry(tmp_path)
    assert read_record(path, "about.json") == {"count": 5}
    (path / "tokens.bin").write_bytes(b"12346")
    with pytest.raises(Damaged, match=r"tokens\.bin"):
        read_record(path, "about.json")
    (path / "tokens.bin").unlink()
    with pytest.raises(Damaged, match="entry"):
        read_record(path, "about.json")


def test_what_is_damaged_is_deleted_and_said_and_links_are_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = entry(tmp_path)
    with caplog.at_level("INFO", logger="sifting"):
        drop_damaged(path, Damaged("entry is damaged"))
    assert not path.exists()
    assert "entry is damaged; it is made again" in caplog.text
    elsewhere = entry(tmp_path / "elsewhere")
    link = tmp_path / "link"
    link.symlink_to(elsewhere)
    with pytest.raises(DataError, match="is a link, which is not deleted"):
        drop_damaged(link, Damaged("link is damaged"))
    assert elsewhere.exists()


def test_an_entry_is_not_locked_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text("kept")
    (tmp_path / "entry.lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=r"entry\.lock is a link"), alone(tmp_path / "entry"):
        pass
    assert (tmp_path / "elsewhere").read_text() == "kept"


def test_one_process_at_a_time_makes_an_entry(tmp_path: Path) -> None:
    order: list[str] = []

    def other() -> None:
        with alone(tmp_path / "deep" / "entry"):
            order.append("second")

    with alone(tmp_path / "deep" / "entry"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join(0.2)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
