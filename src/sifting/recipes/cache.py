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

from sifting import checksums
from sifting.log import say
from sifting.training.recipe import DataError


def cache_folder(folder: Path | None = None) -> Path:
    """The folder given, or `$SIFT_CACHE`, or ~/.cache/sifting; made where it is not there."""
    path = folder or Path(os.environ.get("SIFT_CACHE") or "~/.cache/sifting").expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True)
        probe = path / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise DataError(
            f"cannot write the cache {path}: {error}. Set SIFT_CACHE to a folder that can be written"
        ) from error
    return path


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes off an entry while it is made: the ranks of a run start together."""
    from filelock import FileLock

    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        yield


def write_record(folder: Path, name: str, content: Mapping[str, Any], files: Sequence[str]) -> None:
    """Write the file that says what an entry holds, with the checksums of its other files."""
    digests = {file: checksums.digest_of_file(folder / file) for file in files}
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
