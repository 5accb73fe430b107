"""One process a folder, or a file: the second is refused, by the name of the first."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sifting import files
from sifting.training.run_folder import RunError

if TYPE_CHECKING:
    from filelock import BaseFileLock

LOCK, HOLDER = ".lock", ".locked-by.json"
# seconds in which what a killed process forked, the workers of its loaders, sees that it is gone
ORPHANS = 15.0


@contextmanager
def locked(folder: Path, *, here: bool = True, file: str = "") -> Iterator[None]:
    """Keep other processes off a folder, which is made where it is missing, or off one file in it.

    The operating system gives the lock back when a process ends, however it ends. On network file
    systems it holds as far as they have locks; where there are none, a file takes its place.

    Args:
        folder: of a run or of a comparison.
        here: whether this process is the one that writes; the other ranks of a run do not lock.
        file: the name of the file that is to be written, where that is all; nothing is left beside it.

    Raises:
        RunError: where another process holds it, or it cannot be made.
    """
    if not here:
        yield
        return
    from filelock import FileLock, Timeout  # torch brings it

    before = f".{file}" if file else ""
    path, holder = folder / f"{before}{LOCK}", folder / f"{before}{HOLDER}"
    if path.is_symlink():  # earlier releases of filelock empty what it leads to
        raise RunError(f"{path} is a link: nothing is locked through one; delete it")
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(path)
        _acquire(lock, holder)
    except Timeout as error:
        raise RunError(
            f"{folder / file} is in use by {_holder(holder)}: wait for it, stop it, or choose another "
            f"{'file' if file else 'folder'}"
        ) from error
    except OSError as error:
        raise RunError(f"cannot write to {folder}: {error}") from error
    try:
        with suppress(OSError):  # a name for others; the lock holds without it
            files.write_json(holder, _self())
        yield
    finally:
        with suppress(OSError):
            holder.unlink(missing_ok=True)
        if file:
            with suppress(OSError):
                path.unlink()
        elif [entry.name for entry in _entries(folder)] == [LOCK]:
            # nothing came of it: leave no trace. The lock is still held, so nobody else has it
            with suppress(OSError):
                path.unlink()
                for one in missing:
                    one.rmdir()
        lock.release()


def _acquire(lock: BaseFileLock, holder: Path) -> None:
    """Take a lock at once, or when the last of what a dead process forked is gone."""
    from filelock import Timeout

    try:
        lock.acquire(timeout=0)
    except Timeout:
        if not _died(holder):
            raise
        lock.acquire(timeout=ORPHANS)


def _died(holder: Path) -> bool:
    """Whether the process that took the lock is gone; False where that cannot be told."""
    if os.name != "posix":  # elsewhere this would send a signal
        return False
    try:
        found = _read_holder(holder)
        if found["host"] != platform.node():
            return False
        os.kill(int(found["process"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError, RecursionError, KeyError, TypeError, OverflowError):
        return False
    return False


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # deleted under the run
        return []


def _self() -> dict[str, object]:
    return {
        "process": os.getpid(),
        "host": platform.node(),
        "command": " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _read_holder(holder: Path) -> Any:
    return json.loads(holder.read_text(encoding="utf-8"))


def _holder(holder: Path) -> str:
    try:
        found = _read_holder(holder)
        return f"process {found['process']} on {found['host']} ({found['command']}, since {found['since']})"
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return "another process"
