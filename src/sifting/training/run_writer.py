"""Writing a run folder: its settings, its log, its checkpoints, and how it ended."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import secrets
import shutil
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sifting import checksums, files
from sifting.checksums import Growing
from sifting.training.checkpoints import Checkpoints, Found
from sifting.training.run_folder import FORMAT, LOGS, RunError, check_logs, read_file, resumable

ROOM, ROOM_BYTES = ".room", 1 << 15  # for the summary and `run.json` of a run on a full disk


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
    >>> from sifting.training.run_folder import read_run
    >>> read_run(folder.path).metrics
    [{'kind': 'train', 'step': 1, 'loss': 2.0}]

    Args:
        path: the folder; use `create` for a new one and `reopen` to continue with one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.checkpoints = Checkpoints(path / "checkpoints")
        self._about: dict[str, Any] = {}
        self._logs = {name: Growing() for name in LOGS}

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
        with _writing(path):
            folder.checkpoints.folder.mkdir(parents=True, exist_ok=True)
            folder._about = {"format": FORMAT, "id": secrets.token_hex(8), "started": _now()}
            folder._write("config.json", config)
            folder._write("environment.json", environment())
            folder._keep_room()
            folder._status("running")
        return folder

    @staticmethod
    def check(path: Path) -> None:
        """Raise unless a new run can be written to a folder; nothing is made."""
        refuse_links(path)
        if (path / "run.json").exists():
            raise RunError(f"{path} holds a run already: resume it, or choose another folder")
        left = [name for name in LOGS if (path / name).exists()]
        left += [
            f"checkpoints/step-{step:08d}" for step in Checkpoints(path / "checkpoints").steps()
        ]
        if left:
            raise RunError(
                f"{path} holds {left[0]} of a run whose run.json is gone: restore it, or choose another folder"
            )
        try:
            files.check_writable(path)
        except OSError as error:
            raise RunError(f"cannot write a run to {path}: {error}") from error

    @classmethod
    def reopen(
        cls, path: Path, *, config: Mapping[str, Any], found: Found, free: Collection[str] = ()
    ) -> RunFolder:
        """Continue with a run from a checkpoint: what was logged after it is forgotten.

        Args:
            config: the settings, which must be those it was started with.
            found: the checkpoint, or none to continue from the beginning.
            free: settings that may be others than it was started with.
        """
        about = resumable(path)
        refuse_links(path)
        then = read_file(path, "config.json", about)
        known = {*config, *then} - set(free)
        changed = sorted(k for k in known if config.get(k) != then.get(k))
        if changed:
            shown = "; ".join(f"{k}: {then.get(k)!r} → {config.get(k)!r}" for k in changed)
            raise RunError(
                f"{path} was started with other settings ({shown}): resume it with its own"
            )
        said = {} if found.state is None else dict(found.state.get("logs") or {})
        check_logs(path, said, whole=False)
        folder = cls(path)
        folder._about = about
        about["files"].pop("summary.json", None)  # of where it was stopped
        with _writing(path):
            files.drop_parts(path)
            folder._keep_room()
            # first what the logs begin with, then the logs: whoever reads in between finds both true
            folder._status("running", logs=said)
            for name, log in folder._logs.items():
                kept = path / name
                if kept.exists():
                    start = kept.read_bytes()[: said.get(name, {}).get("bytes", 0)]
                    files.write_bytes(kept, start)
                    log.add(start)
            folder.checkpoints.drop(after=found.step or 0)
        return folder

    @property
    def id(self) -> str | None:
        """What tells the run from others."""
        found: str | None = self._about.get("id")
        return found

    def _keep_room(self) -> None:
        """Take some of the disk now, so that a run which fills it can still say how it ended."""
        # no zeros, for which some file systems take no room
        files.write_bytes(self.path / ROOM, os.urandom(ROOM_BYTES))

    def _write(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a file whose checksum `run.json` will have."""
        digest = hashlib.sha256()
        files.write_json(self.path / name, content, digest=digest)
        self._about.setdefault("files", {})[name] = digest.hexdigest()

    def _status(self, status: str, *, logs: Mapping[str, Any] | None = None) -> None:
        if logs is None:
            logs = self.said_of_logs()
        self._about |= {"status": status, "updated": _now(), "logs": dict(logs)}
        checksums.write_json(self.path / "run.json", self._about)

    def said_of_logs(self) -> dict[str, Any]:
        """How far the logs have come, and their checksums."""
        self._logs["audits.jsonl"].catch_up(self.path / "audits.jsonl")  # the sifter writes it
        return {name: log.said() for name, log in self._logs.items()}

    def attach(self, name: str, content: Mapping[str, Any]) -> None:
        """Write a further file of the run, unless it is there already."""
        before = self._about.get("files", {}).get(name)
        if before is not None and before == hashlib.sha256(files.json_bytes(content)).hexdigest():
            return
        with _writing(self.path):
            self._write(name, content)
            self._status(str(self._about["status"]))

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one line of metrics, all of it or none."""
        line = (json.dumps(record) + "\n").encode("utf-8")
        log = self._logs["metrics.jsonl"]
        files.append(self.path / "metrics.jsonl", line, size=log.size)
        log.add(line)

    def finish(self, status: str, summary: Mapping[str, Any]) -> None:
        """Write the summary and how the run ended."""
        with suppress(OSError):
            (self.path / ROOM).unlink(missing_ok=True)
        self._write("summary.json", summary)
        self._status(status)

    def save(self, step: int, state: Mapping[str, Any], *, keep: int) -> Path:
        """Write a checkpoint, which says how far the logs had come; see `Checkpoints.save`."""
        logs = self.said_of_logs()
        path = self.checkpoints.save(step, {**state, "run": self.id, "logs": logs}, keep=keep)
        self._status("running", logs=logs)
        return path

    def trouble(self, error: OSError) -> str | None:
        """What an error says about this folder; None where it is about something else."""
        if not (self.path / "run.json").exists():
            return f"{self.path} is gone: it was deleted or moved while the run wrote to it"
        there = error.filename is not None and str(error.filename).startswith(str(self.path))
        if there or error.errno in files.DISK:
            return f"cannot write to {self.path}: {error.strerror or error}"
        return None


def refuse_links(path: Path) -> None:
    """Raise where something planted would lead what a run writes or deletes into another folder."""
    for name in (*LOGS, "checkpoints"):
        if (path / name).is_symlink():
            raise RunError(f"{path / name} is a link: a run is not written through one")


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write a run to {path}: {error}") from error


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def _existing(path: Path) -> Path:
    """The folder, or the nearest one above it that is there."""
    return next(each for each in (path, *path.absolute().parents) if each.exists())
