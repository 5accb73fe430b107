"""A sifter's state in a file: written whole or not at all, read without running code."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from sifting import files


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
    files.write_state(path, dict(state))


def read_state(path: str | Path) -> dict[str, Any]:
    """Read a state as plain tensors and numbers; anything else in the file is refused."""
    state: dict[str, Any] = torch.load(path, map_location="cpu", weights_only=True)
    return state
