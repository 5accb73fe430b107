"""Short hashes of tensors, numbers, states and files, whatever their fields are called.

Strings, None and the names of fields do not count; a mapping counts as the sorted values in it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fingerprints.names import ignored

Result = dict[str, Any]  # "parts": hash by what it is of; "numbers": a few readable ones
SHORT = 10


def short(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:SHORT]


def digest(value: Any) -> str:
    """One hash of nested values; lists keep their order."""
    return short(_canonical(value))


def _canonical(value: Any) -> bytes:
    if isinstance(value, Tensor):
        value = value.detach().cpu().contiguous()
        raw = value.flatten().view(torch.uint8).numpy().tobytes()
        return f"tensor {value.dtype} {tuple(value.shape)} {short(raw)}".encode()
    if isinstance(value, np.ndarray):
        return _canonical(torch.from_numpy(value))
    if isinstance(value, int | float | np.number):
        return _number(float(value)).encode()
    if isinstance(value, Mapping):
        kept = (_canonical(member) for key, member in value.items() if not ignored(key))
        return b"{" + b",".join(sorted(filter(None, kept))) + b"}"
    if isinstance(value, list | tuple):
        return b"[" + b",".join(_canonical(member) for member in value) + b"]"
    if value is None or isinstance(value, str):
        return b""
    raise TypeError(f"no digest of a {type(value).__name__}")


def _number(value: float) -> str:
    return repr(value + 0.0)  # not −0.0


def leaves(value: Any) -> Iterator[str]:
    """The numbers, lists of numbers and tensors of a nested value, each as a string."""
    if isinstance(value, Mapping):
        for key, member in value.items():
            if not ignored(key):
                yield from leaves(member)
    elif isinstance(value, list | tuple) and not all(isinstance(v, int | float) for v in value):
        for member in value:
            yield from leaves(member)
    elif value is not None and not isinstance(value, str):
        yield _canonical(value).decode()


def of_leaves(value: Any) -> str:
    """A hash of all numbers and tensors in something, however they are nested."""
    return short("\n".join(sorted(leaves(value))).encode())


def of_state(state: Mapping[str, Any], name: str = "state") -> dict[str, str]:
    """Hashes of a `state_dict` of ours: of its tensors, and of its numbers.

    Equal ones count once. Which numbers a place in the data needs is more likely to change than
    the tensors (weights, random streams) are.
    """
    found = set(leaves(state))
    tensors = {leaf for leaf in found if leaf.startswith("tensor")}
    return {
        f"{name} tensors": short("\n".join(sorted(tensors)).encode()),
        f"{name} numbers": short("\n".join(sorted(found - tensors)).encode()),
    }


def of_model(model: torch.nn.Module) -> str:
    """A hash of a model's parameters and buffers, whole also where they are sharded."""
    return digest([whole(tensor) for tensor in [*model.parameters(), *model.buffers()]])


def whole(tensor: Tensor) -> Tensor:
    gathered = getattr(tensor, "full_tensor", None)
    return (gathered() if gathered is not None else tensor).detach()


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def of_run(folder: Path) -> Result:
    """What a seed decides of a run folder, found by the kinds of its files.

    Logs count line by line, other files and checkpoints each by all that is in them.
    """
    logs = [[of_leaves(line) for line in lines_of(path)] for path in folder.glob("*.jsonl")]
    files = [
        of_leaves(json.loads(path.read_text(encoding="utf-8")))
        for path in folder.glob("*.json")
        if not ignored(path.stem)
    ]
    checkpoints = [
        of_state(torch.load(path, weights_only=True, map_location="cpu"))
        for path in sorted(folder.rglob("*.pt"))
    ]
    parts: dict[str, list[Any]] = {"logs": sorted(logs), "files": sorted(files)}
    for name in ("state tensors", "state numbers"):
        parts[f"checkpoints' {name}"] = [found[name] for found in checkpoints]
    return {
        "parts": {name: short(repr(found).encode()) for name, found in parts.items()},
        "numbers": {"lines": sum(map(len, logs)), "checkpoints": len(checkpoints)},
    }
