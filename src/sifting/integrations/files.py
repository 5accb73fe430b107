"""A sifter's state in a file: written whole or not at all, read without running code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sifting import checksums


def write_state(state: Mapping[str, Any], path: str | Path) -> None:
    """Write a state so that a reader, or a crash, never meets half of it.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_state({"step": 3}, Path(folder) / "sifter.pt")
    ...     read_state(Path(folder) / "sifter.pt"), os.listdir(folder)
    ({'step': 3}, ['sifter.pt'])
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    checksums.write_state(path, dict(state))


def read_state(path: str | Path) -> dict[str, Any]:
    """Read a state as plain tensors and numbers; a damaged file, or anything else in it, is refused."""
    return checksums.read_state(Path(path))
