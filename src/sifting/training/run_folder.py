"""Run folders: what a training run leaves on disk, and reading it back. The format is versioned.

    RUN/
      run.json           format, ID, status ("running", "finished", "stopped", "failed"), times;
                         checksums of the other files, and how far the logs had come
      config.json        the resolved settings
      environment.json   machine, versions, command line
      metrics.jsonl      one JSON object per line; see docs/run-format.md
      audits.jsonl       scores and exact losses of audited candidates
      checkpoints/step-00000200/state.pt
      summary.json       final metrics, written when the run ends

Whatever is written whole is written to a temporary name first, then renamed: a reader, or a
resumed run, never meets half a file. Logs grow by whole lines. What is read back is held against
its checksum.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sifting import checksums
from sifting.checksums import Damaged

FORMAT = 2  # with checksums; 1, without, is still read
READS = (1, FORMAT)
LOGS = ("metrics.jsonl", "audits.jsonl")


class RunError(Exception):
    """A run folder that cannot be used; the message says which and why."""


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
        RunError: where it is no run folder, not as it was written, or of a newer format.
    """
    while True:
        about = _about(path)
        try:
            return _read(path, about)
        except RunError:
            if _about(path) == about:  # else somebody was writing: the files are of two moments
                raise


def _read(path: Path, about: Mapping[str, Any]) -> Run:
    status, over = str(about.get("status")), _is_over(about)
    if about["format"] != 1:
        check_logs(path, about.get("logs"), whole=over)
    summary = None
    if over and ((path / "summary.json").exists() or about["format"] != 1 or status == "finished"):
        summary = read_file(path, "summary.json", about)
    return Run(
        path=path,
        status=status,
        config=read_file(path, "config.json", about),
        environment=read_file(path, "environment.json", about),
        metrics=_lines(path / "metrics.jsonl"),
        summary=summary,
    )


def _is_over(about: Mapping[str, Any]) -> bool:
    return about.get("status") in ("finished", "stopped", "failed")


def read_status(path: Path) -> str:
    """How a run stands, from its `run.json` alone."""
    return str(_about(path).get("status"))


def read_attached(path: Path, name: str) -> dict[str, Any] | None:
    """A further file of a run, as `RunFolder.attach` wrote it; None where there is none."""
    about = _about(path)
    if about["format"] == 1 and not (path / name).exists():
        return None
    if about["format"] != 1 and name not in about["files"]:
        return None
    return read_file(path, name, about)


def resumable(path: Path) -> dict[str, Any]:
    """What `run.json` says of a run that can be resumed.

    Raises:
        RunError: where it is none, or of an earlier format.
    """
    about = _about(path)
    if about["format"] != FORMAT:
        raise RunError(
            f"{path} is a run of format {about['format']}, which has no checksums, and this release continues "
            f"with format {FORMAT}: finish it with the release it was started with, or start over"
        )
    return about


def _about(path: Path) -> dict[str, Any]:
    try:
        about = checksums.read_json(path / "run.json", required=False)
        if about.get("format") not in READS:
            raise RunError(
                f"{path} has format {about.get('format')!r}; this release reads "
                f"{' and '.join(map(str, READS))}"
            )
        if about["format"] != 1:  # format 1 has no checksums
            about = checksums.read_json(path / "run.json")
            if not isinstance(about.get("files"), dict) or not isinstance(about.get("logs"), dict):
                raise Damaged(f"{path / 'run.json'} is damaged: it does not name the run's files")
    except OSError as error:
        raise RunError(f"{path} is not a run folder: run.json cannot be read") from error
    except Damaged as error:
        raise RunError(str(error)) from error
    return about


def read_file(path: Path, name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON file of a run, held against the checksum that `run.json` has of it."""
    try:
        source = (path / name).read_bytes()
        if about["format"] != 1:
            said = about["files"].get(name)
            if said != hashlib.sha256(source).hexdigest():
                raise Damaged(f"{path / name} is not as it was written: its checksum differs")
        return checksums.parse_object(source, path / name)
    except OSError as error:
        raise RunError(f"{path} is not a whole run: {name} cannot be read") from error
    except Damaged as error:
        raise RunError(str(error)) from error


def check_run_logs(path: Path) -> None:
    """Raise unless the logs of a run are what it wrote to them; of a run under way, as far as that is known."""
    about = _about(path)
    if about["format"] != 1:
        check_logs(path, about.get("logs"), whole=_is_over(about))


def check_logs(path: Path, said: Any, *, whole: bool) -> None:
    """Raise unless the logs of a run are, or begin with, what is said of them."""
    try:
        for name in LOGS:
            known = said.get(name) if isinstance(said, Mapping) else None
            if known is not None or said:
                checksums.check_log(path / name, known, whole=whole)
    except OSError as error:
        raise RunError(f"{path}: a log cannot be read: {error}") from error
    except Damaged as error:
        raise RunError(str(error)) from error


def _lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a log; a last one that was cut off is left out, with a warning."""
    if not path.exists():
        return []
    lines = path.read_bytes().decode("utf-8", "replace").splitlines()
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number == len(lines):
                warnings.warn(f"{path}: the last line was cut off and is left out", stacklevel=3)
                break
            raise RunError(f"{path}, line {number}, is damaged: {error}") from error
        if not isinstance(record, dict):
            raise RunError(f"{path}, line {number}, is damaged: it holds no JSON object")
        found.append(record)
    return found
