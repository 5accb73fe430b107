"""Run folders: what a training run leaves on disk, and reading it back. The format is versioned.

    RUN/
      run.json           format, status ("running", "finished", "stopped", "failed"), times
      config.json        the resolved settings
      environment.json   machine, versions, command line
      metrics.jsonl      one JSON object a line; see docs/run-format.md
      audits.jsonl       scores and exact losses of audited candidates
      checkpoints/step-00000200/state.pt
      summary.json       final figures, written when the run ends

Whatever is written whole is written to a temporary name first, then renamed: a reader, or a
resumed run, never meets half a file. `metrics.jsonl` grows by whole lines.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FORMAT = 1


class RunError(Exception):
    """A run folder that cannot be used; the message says which and why."""


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    part = path.with_name(f".{path.name}.part")
    with part.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)


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
        write_json(path / "config.json", config)
        free = shutil.disk_usage(path).free
        if free < (keep + 1) * checkpoint_bytes:
            raise RunError(
                f"{path} is on a disk with {free / 2**20:.0f} MiB free, and {keep + 1} checkpoints need "
                f"{(keep + 1) * checkpoint_bytes / 2**20:.0f} MiB: free some, or choose another folder"
            )
        folder = cls(path)
        write_json(path / "environment.json", environment())
        folder._status("running")
        return folder

    @staticmethod
    def check(path: Path) -> None:
        """Raise unless a new run can be written to a folder, which is made where it is missing."""
        if (path / "run.json").exists():
            raise RunError(f"{path} holds a run already: resume it, or choose another folder")
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path):  # each of several ranks has its own
                pass
        except OSError as error:
            raise RunError(f"cannot write a run to {path}: {error}") from error

    @classmethod
    def reopen(
        cls, path: Path, *, config: Mapping[str, Any], step: int, batches: int | None = None
    ) -> RunFolder:
        """Go on with a run from a checkpoint: what was logged after it is forgotten.

        Args:
            config: the settings, which must be those it was started with.
            step: updates at the checkpoint.
            batches: that were trained by then, if more than one makes an update; audits are
                numbered by the batches before them.
        """
        run = read_run(path)
        changed = sorted(k for k in {*config, *run.config} if config.get(k) != run.config.get(k))
        if changed:
            shown = "; ".join(f"{k}: {run.config.get(k)!r} → {config.get(k)!r}" for k in changed)
            raise RunError(
                f"{path} was started with other settings ({shown}): resume it with its own"
            )
        folder = cls(path)
        last = {"metrics.jsonl": step, "audits.jsonl": (step if batches is None else batches) - 1}
        for name in last:
            kept = [line for line in _lines(path / name) if line.get("step", 0) <= last[name]]
            part = path / f".{name}.part"
            part.write_text("".join(json.dumps(line) + "\n" for line in kept), encoding="utf-8")
            part.replace(path / name)
        folder._status("running")
        return folder

    def _status(self, status: str) -> None:
        path = self.path / "run.json"
        old = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        write_json(
            path, {"format": FORMAT, "started": now, **old, "status": status, "updated": now}
        )

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line of metrics."""
        with (self.path / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def finish(self, status: str, summary: Mapping[str, Any]) -> None:
        """Write the summary and how the run ended."""
        write_json(self.path / "summary.json", summary)
        self._status(status)

    def checkpoint_path(self, step: int) -> Path:
        """Where the checkpoint of a step is, or would be."""
        return self.checkpoints / f"step-{step:08d}"

    def latest(self) -> int | None:
        """Step of the newest whole checkpoint; one that was being removed is none."""
        found = [p.parent.name[5:] for p in self.checkpoints.glob("step-*/state.pt")]
        steps = [int(step) for step in found if step.isdigit()]
        return max(steps, default=None)

    def save(self, step: int, state: Mapping[str, Any], *, keep: int) -> Path:
        """Write a checkpoint under a temporary name, rename it, and drop all but the last `keep`."""
        import torch  # run folders are read without torch

        path = self.checkpoint_path(step)
        part = self.checkpoints / f".{path.name}.part"
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        with (part / "state.pt").open("wb") as file:
            torch.save(dict(state), file)
            file.flush()
            os.fsync(file.fileno())
        shutil.rmtree(path, ignore_errors=True)
        part.rename(path)
        for old in sorted(self.checkpoints.glob("step-*"))[:-keep]:
            shutil.rmtree(old, ignore_errors=True)
        return path

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
    """What a run folder says."""

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
