"""Run folders: what a training run leaves on disk, and reading it back. The format is versioned.

    RUN/
      run.json           format, status ("running", "finished", "stopped", "failed"), times
      config.json        the resolved settings
      environment.json   machine, versions, command line
      metrics.jsonl      one JSON object a line; see docs/run-format.md
      audits.jsonl       scores and exact losses of audited candidates
      checkpoints/step-00000200/state.pt
      summary.json       final metrics, written when the run ends

Whatever is written whole is written to a temporary name first, then renamed: a reader, or a
resumed run, never meets half a file. `metrics.jsonl` grows by whole lines.
"""

from __future__ import annotations

import errno
import json
import os
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sifting import files

FORMAT = 1
# errors of a disk that is full, broken, or may not be written any more
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


class RunError(Exception):
    """A run folder that cannot be used; the message says which and why."""


def environment() -> dict[str, Any]:
    """Machine, versions and command line, for the record."""
    versions = {"python": platform.python_version()}
    for name in ("torch", "transformers", "datasets", "numpy", "sifting"):
        module = sys.modules.get(name)
        if module is not None:
            versions[name] = str(getattr(module, "__version__", "unknown"))
    return {
        "versions": versions,
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
    }


class RunFolder:
    """A run folder that is being written.

    >>> import tempfile
    >>> folder = RunFolder.create(Path(tempfile.mkdtemp()) / "run", config={"seed": 0})
    >>> folder.log({"kind": "train", "step": 1, "loss": 2.0})
    >>> folder.finish("finished", {"accuracy": 0.9})
    >>> read_run(folder.path).metrics
    [{'kind': 'train', 'step': 1, 'loss': 2.0}]

    Args:
        path: the folder; use `create` for a new one and `reopen` to go on with one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = path / "checkpoints"

    @classmethod
    def create(
        cls, path: Path, *, config: Mapping[str, Any], checkpoint_bytes: int = 0, keep: int = 2
    ) -> RunFolder:
        """Make a new folder, or say before training starts why it cannot be one.

        Args:
            checkpoint_bytes: size of one checkpoint, to see whether the disk has room.
            keep: how many are kept; a further one is there while it is written.
        """
        cls.check(path)
        free = shutil.disk_usage(_existing(path)).free
        if free < (keep + 1) * checkpoint_bytes:
            raise RunError(
                f"{path} is on a disk with {free / 2**20:.0f} MiB free, and {keep + 1} checkpoints need "
                f"{(keep + 1) * checkpoint_bytes / 2**20:.0f} MiB: free some, or choose another folder"
            )
        folder = cls(path)
        try:
            folder.checkpoints.mkdir(parents=True, exist_ok=True)
            files.write_json(path / "config.json", config)
            files.write_json(path / "environment.json", environment())
            folder._status("running")
        except OSError as error:
            raise RunError(f"cannot write a run to {path}: {error}") from error
        return folder

    @staticmethod
    def check(path: Path) -> None:
        """Raise unless a new run can be written to a folder; nothing is made."""
        if (path / "run.json").exists():
            raise RunError(f"{path} holds a run already: resume it, or choose another folder")
        try:
            files.check_writable(path)
        except OSError as error:
            raise RunError(f"cannot write a run to {path}: {error}") from error

    @classmethod
    def reopen(
        cls,
        path: Path,
        *,
        config: Mapping[str, Any],
        step: int,
        batches: int | None = None,
        free: Collection[str] = (),
    ) -> RunFolder:
        """Go on with a run from a checkpoint: what was logged after it is forgotten.

        Args:
            config: the settings, which must be those it was started with.
            step: updates at the checkpoint.
            batches: that were trained by then, if more than one makes an update; audits are
                numbered by the batches before them.
            free: settings that may be others than it was started with.
        """
        run = read_run(path)
        known = {*config, *run.config} - set(free)
        changed = sorted(k for k in known if config.get(k) != run.config.get(k))
        if changed:
            shown = "; ".join(f"{k}: {run.config.get(k)!r} → {config.get(k)!r}" for k in changed)
            raise RunError(
                f"{path} was started with other settings ({shown}): resume it with its own"
            )
        folder = cls(path)
        files.drop_parts(path)
        last = {"metrics.jsonl": step, "audits.jsonl": (step if batches is None else batches) - 1}
        for name in last:
            kept = [line for line in _lines(path / name) if line.get("step", 0) <= last[name]]
            files.write_text(path / name, "".join(json.dumps(line) + "\n" for line in kept))
        folder._status("running")
        return folder

    def _status(self, status: str) -> None:
        path = self.path / "run.json"
        old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        files.write_json(
            path, {"format": FORMAT, "started": now, **old, "status": status, "updated": now}
        )

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line of metrics."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def finish(self, status: str, summary: Mapping[str, Any]) -> None:
        """Write the summary and how the run ended."""
        files.write_json(self.path / "summary.json", summary)
        self._status(status)

    def checkpoint_path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self.checkpoints / f"step-{step:08d}"

    def latest(self) -> int | None:
        """Step of the newest whole checkpoint; one that was being removed is none."""
        found = [p.parent.name[5:] for p in self.checkpoints.glob("step-*/state.pt")]
        steps = [int(step) for step in found if step.isdigit()]
        return max(steps, default=None)

    def last_good(self) -> str:
        """Where the newest whole checkpoint is, in words."""
        step = self.latest()
        if step is None:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {self.checkpoint_path(step)}"

    def save(self, step: int, state: Mapping[str, Any], *, keep: int) -> Path:
        """Write a checkpoint whole or not at all, and drop all but the last `keep`."""
        path = self.checkpoint_path(step)
        for folder in (self.checkpoints, path):
            _refuse_link(folder)
        path.mkdir(parents=True, exist_ok=True)
        files.write_state(path / "state.pt", state)
        for old in sorted(self.checkpoints.glob("step-*/state.pt"))[:-keep]:
            self._drop(old.parent)
        return path

    def drop_checkpoints(self) -> None:
        """Delete all checkpoints, of a run that is over."""
        _refuse_link(self.checkpoints)
        for path in self.checkpoints.glob("step-*"):
            self._drop(path)

    def _drop(self, path: Path) -> None:
        _refuse_link(path)
        shutil.rmtree(path, ignore_errors=True)

    def trouble(self, error: OSError) -> str | None:
        """What an error says about this folder; None where it is about something else."""
        if not (self.path / "run.json").exists():
            return f"{self.path} is gone: it was deleted or moved while the run wrote to it"
        there = error.filename is not None and str(error.filename).startswith(str(self.path))
        if there or error.errno in DISK:
            return f"cannot write to {self.path}: {error.strerror or error}"
        return None

    def load(self, step: int) -> dict[str, Any]:
        """Read a checkpoint; only tensors and plain values are ever unpickled."""
        import torch

        path = self.checkpoint_path(step) / "state.pt"
        try:
            state: dict[str, Any] = torch.load(path, weights_only=True, map_location="cpu")
        except Exception as error:
            raise RunError(f"cannot read the checkpoint {path}: {error}") from error
        return state


@dataclass(frozen=True)
class Run:
    """What a run folder says.

    Attributes:
        path: the folder.
        status: "running", "finished", "stopped" or "failed".
        config: the settings of the run.
        environment: machine, versions and command line.
        metrics: the records of the log, in the order they were written.
        summary: what the run ended with; None while it runs.
    """

    path: Path
    status: str
    config: dict[str, Any]
    environment: dict[str, Any]
    metrics: list[dict[str, Any]]
    summary: dict[str, Any] | None


def read_run(path: Path) -> Run:
    """Read a run folder, finished or still being written.

    Raises:
        RunError: where it is no run folder, damaged, or of a newer format.
    """
    state = _object(path / "run.json")
    if state.get("format") != FORMAT:
        raise RunError(f"{path} has format {state.get('format')!r}; this release reads {FORMAT}")
    summary = path / "summary.json"
    return Run(
        path=path,
        status=str(state.get("status")),
        config=_object(path / "config.json"),
        environment=_object(path / "environment.json"),
        metrics=_lines(path / "metrics.jsonl"),
        summary=_object(summary) if summary.exists() else None,
    )


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())


def _refuse_link(path: Path) -> None:
    """What is in a folder may be deleted, and what a link leads to is somebody else's."""
    if path.is_symlink():
        raise RunError(f"{path} is a link: checkpoints are not written or deleted through one")


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path.parent} is not a run folder: {path.name} cannot be read") from error
    except ValueError as error:
        raise RunError(f"{path} is damaged: {error}") from error
    if not isinstance(content, dict):
        raise RunError(f"{path} is damaged: it holds no JSON object")
    return content


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; a last one that was cut off is left out, with a warning."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            if number == len(lines):
                warnings.warn(f"{path}: the last line was cut off and is left out", stacklevel=3)
                break
            raise RunError(f"{path}, line {number}, is damaged: {error}") from error
    return found
