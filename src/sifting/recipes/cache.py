"""A folder for what is made once and used by many runs, each thing under a hash of what made it.

An entry is held against its checksums whenever it is opened: one that is damaged is named, deleted and
made again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sifting import checksums, files
from sifting.log import say
from sifting.training.recipe import DataError


def cache_folder(folder: Path | None = None) -> Path:
    """The folder given, or `$SIFT_CACHE`, or ~/.cache/sifting; made where it is not there."""
    path = folder or Path(os.environ.get("SIFT_CACHE") or "~/.cache/sifting").expanduser()
    with _disk(path):
        path.mkdir(parents=True, exist_ok=True)
        files.check_writable(path)
    return path


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    """What the disk refuses is named, with the way out."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"cannot make {path} in the cache: {error}. Free some space, or set SIFT_CACHE to a folder that "
            "can be written"
        ) from error


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes off an entry while it is made: the ranks of a run start together.

    Raises:
        DataError: where the disk does not let it be made.
    """
    from filelock import FileLock

    file = Path(f"{path}.lock")
    if file.is_symlink():  # earlier releases of filelock empty what it leads to
        raise DataError(f"{file} is a link: nothing is locked through one; delete it")
    with _disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(file)
        lock.acquire()
    try:
        with _disk(path):
            yield
    finally:
        lock.release()


def write_record(folder: Path, name: str, content: Mapping[str, Any], named: Sequence[str]) -> None:
    """Write the file that says what an entry holds, with the checksums of its other files."""
    digests = {file: checksums.digest_of_file(folder / file) for file in named}
    checksums.write_json(folder / name, {**content, "files": digests})


def read_record(folder: Path, name: str) -> dict[str, Any]:
    """What `write_record` wrote, after all the files that it names were held against their checksums.

    Raises:
        Damaged: where one is not as it was written, or missing.
    """
    try:
        content = checksums.read_json(folder / name)
        for file, expected in dict(content.pop("files")).items():
            checksums.check_file(folder / file, expected)
    except (OSError, KeyError, TypeError) as error:
        raise checksums.Damaged(f"{folder} is damaged: {error}") from error
    return content


def drop_damaged(path: Path, why: Exception) -> None:
    """Delete an entry, or a part of one, that is to be made again, and say so."""
    if path.is_symlink():
        raise DataError(f"{why}; and {path} is a link, which is not deleted: delete it yourself")
    say(f"{why}; it is made again")
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
