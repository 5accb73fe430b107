"""A sifter's state in a file: written whole or not at all, read without running code."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


def write_state(state: Mapping[str, Any], path: str | Path) -> None:
    """Write a state so that a reader, or a crash, never meets half of it.

    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_state({"step": 3}, Path(folder) / "sifter.pt")
    ...     read_state(Path(folder) / "sifter.pt"), os.listdir(folder)
    ({'step': 3}, ['sifter.pt'])
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def read_state(path: str | Path) -> dict[str, Any]:
    """Read a state as plain tensors and numbers; anything else in the file is refused."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state
