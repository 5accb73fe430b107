"""A folder for what is made once and used by many runs, each thing under a hash of what made it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

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
