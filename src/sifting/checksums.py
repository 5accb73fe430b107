"""Checksums: a file that is read back is as it was written, or is refused by name.

- a JSON file of its own has a `checksum` of the rest of it (`write_json`, `read_json`);
- a file of tensors ends with a line that has the checksum of what is before it (`write_state`,
  `read_state`); `torch.load` reads such a file as if the line were not there;
- of other files, and of logs, which grow, the checksum stands in a JSON file that has its own.

They tell damage: flipped bits, lost ends, one file in another's place. They do not tell who wrote.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sifting import files

NAME = "checksum"  # of the member of a JSON object
CHUNK = 1 << 20
LABEL = b"\nsha256:"
TRAILER = len(LABEL) + 64 + 1


class Damaged(ValueError):
    """A file that is not as it was written; the message names it."""


def digest_of(content: Any) -> str:
    """The checksum of anything that JSON can hold.

    >>> digest_of({"a": 1, "b": 2}) == digest_of({"b": 2, "a": 1})
    True
    """
    plain = json.dumps(content, sort_keys=True)
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()


def digest_of_file(path: Path, *, size: int | None = None) -> str:
    """The checksum of a file, or of its first bytes.

    Raises:
        Damaged: where it has fewer.
    """
    found, left = hashlib.sha256(), path.stat().st_size if size is None else size
    with path.open("rb") as file:
        while left > 0:
            chunk = file.read(min(CHUNK, left))
            if not chunk:
                raise Damaged(f"{path} is {size} bytes long any more: its end is missing")
            found.update(chunk)
            left -= len(chunk)
    return found.hexdigest()


def check_file(path: Path, expected: str) -> None:
    """Raise `Damaged` unless a file has a checksum."""
    if digest_of_file(path) != expected:
        raise Damaged(f"{path} is not as it was written: its checksum differs")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all, with a checksum of its own.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_json(Path(folder) / "run.json", {"format": 2})
    ...     read_json(Path(folder) / "run.json")
    {'format': 2}
    """
    plain = json.loads(json.dumps(dict(content)))  # as it will be read
    files.write_json(path, {**plain, NAME: digest_of(plain)})


def read_json(path: Path, *, required: bool = True) -> dict[str, Any]:
    """Read what `write_json` wrote.

    Args:
        path: of the file.
        required: whether a file without a checksum, as earlier releases wrote, is refused.

    Raises:
        Damaged: where it is not as it was written.
        OSError: where it cannot be read.
    """
    content = parse_object(path.read_bytes(), path)
    said = content.pop(NAME, None)
    if said is None and required:
        raise Damaged(f"{path} is damaged: it has no checksum")
    if said is not None and said != digest_of(content):
        raise Damaged(f"{path} is not as it was written: its checksum differs")
    return content


def parse_object(source: bytes, path: Path) -> dict[str, Any]:
    """A JSON object from a file's bytes.

    Raises:
        Damaged: where they hold none.
    """
    try:
        content = json.loads(source.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise Damaged(f"{path} is damaged: it is not text") from error
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise Damaged(f"{path} is damaged: it holds no JSON object")
    return content


def write_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write tensors and plain values whole or not at all, the checksum in the last line."""
    import torch  # what else is written here is written without it

    found = hashlib.sha256()
    with files.replacing(path, digest=found) as file:
        torch.save(dict(state), file)  # type: ignore[arg-type]
        file.write(LABEL + found.hexdigest().encode() + b"\n")


def check_state(path: Path) -> None:
    """Raise `Damaged` unless a file of tensors is as `write_state` wrote it."""
    size = path.stat().st_size - TRAILER
    with path.open("rb") as file:
        file.seek(max(0, size))
        trailer = file.read()
    if size < 0 or not trailer.startswith(LABEL):
        raise Damaged(f"{path} is damaged: its end, which holds its checksum, is missing")
    if trailer[len(LABEL) : -1].decode("ascii", "replace") != digest_of_file(path, size=size):
        raise Damaged(f"{path} is not as it was written: its checksum differs")


def read_state(path: Path) -> dict[str, Any]:
    """Read what `write_state` wrote; only tensors and plain values are ever unpickled.

    Raises:
        Damaged: where it is not as it was written, or would run code.
        OSError: where it cannot be read.
    """
    import torch

    check_state(path)
    try:
        state = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:  # what torch says of it is advice to trust the file
        raise Damaged(
            f"{path} holds more than tensors and plain values, or is damaged; it was not loaded"
        ) from error
    if not isinstance(state, dict):
        raise Damaged(f"{path} is damaged: it holds a {type(state).__name__}")
    return state


@dataclass
class Growing:
    """A log's length and checksum, as it grows.

    >>> log = Growing()
    >>> log.add(b"one line")
    >>> log.said()["bytes"]
    8
    """

    size: int = 0
    _digest: Any = field(default_factory=hashlib.sha256)

    def add(self, data: bytes) -> None:
        """Take in what was appended."""
        self._digest.update(data)
        self.size += len(data)

    def catch_up(self, path: Path) -> None:
        """Take in what somebody else has appended to a file."""
        try:
            with path.open("rb") as file:
                file.seek(self.size)
                while chunk := file.read(CHUNK):
                    self.add(chunk)
        except FileNotFoundError:
            pass

    def said(self) -> dict[str, Any]:
        """For the record."""
        return {"bytes": self.size, "sha256": self._digest.hexdigest()}


def check_log(path: Path, said: Any, *, whole: bool) -> None:
    """Raise `Damaged` unless a log is what a record says, or begins with it.

    Args:
        path: of the log; one that is missing is empty.
        said: what `Growing.said` gave.
        whole: whether nothing may come after that.
    """
    if not isinstance(said, Mapping) or not isinstance(said.get("bytes"), int):
        raise Damaged(f"what is recorded of {path} is damaged: {str(said)[:60]}")
    size = os.path.getsize(path) if path.exists() else 0
    if size < said["bytes"]:
        raise Damaged(
            f"{path} was shortened: it has {size} bytes, and {said['bytes']} were written to it"
        )
    if whole and size > said["bytes"]:
        raise Damaged(
            f"{path} was lengthened: it has {size} bytes, and {said['bytes']} were written to it"
        )
    if said["bytes"] and digest_of_file(path, size=said["bytes"]) != said.get("sha256"):
        raise Damaged(f"{path} is not as it was written: its checksum differs")
