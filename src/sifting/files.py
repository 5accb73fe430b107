"""Writing files whole or not at all: a reader, or a crash, never meets half of one.

The content goes into a temporary file beside the target, which is opened exclusively and follows
no link; it is flushed to the disk and renamed over the target, and so is the folder's entry.
Whatever fails on the way leaves the target as it was and no temporary file behind.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

_OWN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _OWN
# errors of a disk that is full, broken, may not be written any more, or has gone away
_TROUBLES = ("ENOSPC", "EDQUOT", "EROFS", "EIO", "EFBIG", "ESTALE")
DISK = frozenset(getattr(errno, name) for name in _TROUBLES if hasattr(errno, name))


class Digest(Protocol):
    """What is told all bytes that are written, e.g. `hashlib.sha256()`."""

    def update(self, data: bytes, /) -> None: ...


class Sink:
    """The file that is being written.

    Attributes:
        failure: what the disk said when a write failed. Writers in between, torch.save among them,
            may raise something else for it.
    """

    def __init__(self, descriptor: int, digest: Digest | None) -> None:
        self._file = os.fdopen(descriptor, "wb")
        self._digest = digest
        self.failure: OSError | None = None

    def write(self, data: Any) -> int:
        """Write bytes."""
        if self._digest is not None:
            self._digest.update(data)
        try:
            return self._file.write(data)
        except OSError as error:
            self.failure = error
            raise

    def flush(self) -> None:
        """Hand on what is buffered."""
        try:
            self._file.flush()
        except OSError as error:
            self.failure = error
            raise

    def settle(self) -> None:
        """Wait until everything is on the disk."""
        self.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Give the file back, whatever it still holds."""
        with suppress(OSError):  # of a disk that is full, which has been told already
            self._file.close()


@contextmanager
def replacing(path: str | Path, *, digest: Digest | None = None) -> Iterator[Sink]:
    """A file to write that takes the place of another when all is written, or never.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replacing(Path(folder) / "log.txt") as file:
    ...         _ = file.write(b"all of it")
    ...     os.listdir(folder)
    ['log.txt']

    Args:
        path: what is replaced; a link is replaced itself, and not what it leads to.
        digest: told every byte that is written.
    """
    path = Path(path)
    part = path.with_name(f".{path.name}.{secrets.token_hex(4)}.part")
    file = Sink(os.open(part, _FLAGS, 0o666), digest)
    try:
        try:
            yield file
            file.settle()
        except Exception as error:
            if file.failure is not None and error is not file.failure:
                raise file.failure from error
            raise
        finally:
            file.close()
        os.replace(part, path)
    except BaseException as error:
        with suppress(OSError):
            part.unlink()
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a write that fails does not say of which file it was
        raise
    _settle_folder(path.parent)


def append(path: str | Path, content: bytes, *, size: int) -> None:
    """Append to a log, all of it or nothing; a log that is a link is not followed.

    Args:
        path: of the log, which is made where it is missing.
        content: what is appended at once.
        size: of the log so far: to what it is cut back where not all could be written.

    Raises:
        OSError: with the log's name, where the disk has no room for all, or it is a link.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _OWN, 0o666)
    try:
        if os.write(descriptor, content) != len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    except OSError as error:
        with suppress(OSError):
            os.truncate(path, size)
        if error.filename is None:
            error.filename = str(path)
        raise
    finally:
        os.close(descriptor)


def write_bytes(path: str | Path, content: bytes, *, digest: Digest | None = None) -> None:
    """Write bytes whole or not at all."""
    with replacing(path, digest=digest) as file:
        file.write(content)


def write_text(path: str | Path, content: str, *, digest: Digest | None = None) -> None:
    """Write text as UTF-8, whole or not at all."""
    write_bytes(path, content.encode("utf-8"), digest=digest)


def write_json(
    path: str | Path, content: Mapping[str, Any], *, digest: Digest | None = None
) -> None:
    """Write a JSON file whole or not at all.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder) / "run.json", {"format": 1})
    ...     print((Path(folder) / "run.json").read_text(), end="")
    {
     "format": 1
    }
    """
    write_bytes(path, json_bytes(content), digest=digest)


def json_bytes(content: Mapping[str, Any]) -> bytes:
    """A JSON file's content."""
    return (json.dumps(content, indent=1) + "\n").encode("utf-8")


def put_in_place(part: Path, path: Path) -> None:
    """Give a folder its own name, once every file in it was written by one of these functions.

    Args:
        part: the folder under another name beside it.
        path: what it is called from now on; there is none yet, or an empty one.
    """
    os.replace(part, path)
    _settle_folder(path.parent)


def drop_parts(folder: str | Path) -> None:
    """Delete the temporary files that a process which was killed left in a folder.

    Args:
        folder: in which nobody else is writing.
    """
    for part in Path(folder).glob(".*.part"):
        if part.is_symlink() or part.is_file():
            part.unlink(missing_ok=True)


def check_writable(folder: str | Path) -> None:
    """Raise OSError unless files can be written to a folder; nothing is made or left.

    Args:
        folder: which may not be there yet: then the nearest one above it counts.
    """
    folder = Path(folder).absolute()
    while not folder.exists() and not folder.is_symlink():
        folder = folder.parent
    with tempfile.TemporaryFile(dir=folder):
        pass


def _settle_folder(folder: Path) -> None:
    """Wait until a renamed entry is on the disk, where folders can be opened."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        with suppress(OSError):  # some network file systems refuse
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
