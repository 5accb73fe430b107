"""Finding and reading run folders. What is damaged is named and left out; nothing here raises for it.

One run never costs the others: whatever reading or judging it raises, it is left out by name.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sifting.report.sanitize import clip, cut
from sifting.training.run_folder import Run, RunError, read_attached, read_run
from sifting.verdict import Verdict, judge
from sifting.verdict.curves import Curve, arm_of, comparable, curve_of

FILES = ("run.json", "config.json", "environment.json", "metrics.jsonl", "summary.json")


KNOWN = (RunError, ValueError, OSError, RecursionError, OverflowError)  # of damaged runs


class NothingToReport(Exception):
    """No run that could be read; the message says where was looked and what was skipped."""


@dataclass(frozen=True)
class Skipped:
    """A run that was left out, or read in part, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Entry:
    """One run that could be read.

    Attributes:
        name: its folder, as seen from the folder that was given.
        run: what it says.
        curve: its evaluations.
        reference: calibrated seconds of each operation, where it has them.
    """

    name: str
    run: Run
    curve: Curve
    reference: dict[str, float] = field(default_factory=dict)

    @property
    def last(self) -> dict[str, Any]:
        """The last record of its log that has metrics."""
        measured = (m for m in reversed(self.run.metrics) if m.get("kind") != "warning")
        return next(measured, {})

    @property
    def warnings(self) -> list[str]:
        """What the library warned of: by its log, and by the summary of a run that is over."""
        found = [m for m in self.run.metrics if m.get("kind") == "warning"]
        found += _list((self.run.summary or {}).get("warnings"))
        said = [w.get("message") if isinstance(w, Mapping) else w for w in found]
        return [clip(message, 600) for message in said if isinstance(message, str) and message]


@dataclass(frozen=True)
class Experiment:
    """Runs that can be compared, and the verdict on them."""

    title: str
    entries: tuple[Entry, ...]
    verdict: Verdict

    @property
    def arms(self) -> dict[str, list[Entry]]:
        """The runs of each arm, in the order of the verdict."""
        found: dict[str, list[Entry]] = {arm.name: [] for arm in self.verdict.arms}
        for entry in self.entries:
            found[entry.curve.arm].append(entry)
        return found


@dataclass(frozen=True)
class Material:
    """All that a report shows."""

    experiments: tuple[Experiment, ...]
    skipped: tuple[Skipped, ...]


def find(folder: Path) -> Iterator[Path]:
    """Run folders in a folder, or the folder itself; links are not followed.

    Args:
        folder: a run folder, or one that holds some at any depth.
    """
    for place, inside, files in os.walk(folder, followlinks=False):
        inside.sort()
        if "run.json" in files:
            inside.clear()
            yield Path(place)


def collect(folders: Sequence[Path], *, target: float | None = None) -> Material:
    """Read the runs in some folders and judge those that can be compared.

    Args:
        folders: run folders, or folders that hold some.
        target: metric whose time is compared; by default what every baseline run reached.

    Raises:
        NothingToReport: where no run could be read.
    """
    skipped: list[Skipped] = []
    entries: dict[Path, Entry] = {}
    for folder in folders:
        if not folder.is_dir():
            skipped.append(Skipped(str(folder), "there is no such folder"))
            continue
        for path in find(folder):
            name = path.name if path == folder else str(path.relative_to(folder))
            try:
                entries.setdefault(path.resolve(), _read(path, folder.resolve(), name, skipped))
            except Exception as error:
                skipped.append(Skipped(name, _why(error)))
    by_path = {id(entry.run): entry for entry in entries.values()}
    groups = comparable([entry.run for entry in entries.values()])
    experiments = []
    for (recipe, metric, budget), runs in groups.items():
        kept = _one_each([by_path[id(run)] for run in runs], skipped)
        title = " · ".join(clip(part, 80) for part in (recipe, metric, _brief(budget)) if part)
        judged = _judge(kept, target, skipped)
        if judged is not None:
            experiments.append(Experiment(title, *judged))
    if not experiments:
        looked = ", ".join(str(folder) for folder in folders)
        why = "".join(f"\n  {s.name}: {s.reason}" for s in skipped)
        raise NothingToReport(
            f"no run to report in {looked}: a run folder has a run.json; `sift train` and `sift compare` "
            f"write them{why}"
        )
    return Material(tuple(experiments), tuple(skipped))


def _why(error: Exception) -> str:
    """What to say of a run that was left out; an error that no damage should raise is named as such."""
    said = clip(str(error) or type(error).__name__, 400)
    return said if isinstance(error, KNOWN) else f"unexpected {type(error).__name__}: {said}"


def _judge(
    entries: Sequence[Entry], target: float | None, skipped: list[Skipped]
) -> tuple[tuple[Entry, ...], Verdict] | None:
    """The verdict on runs, without those that cannot be judged even alone."""
    try:
        curves = [entry.curve for entry in entries]
        verdict = judge([entry.run for entry in entries], target=target, curves=curves)
        return tuple(entries), verdict
    except Exception as error:
        sound = []
        for entry in entries:
            try:
                judge([entry.run], target=target, curves=[entry.curve])
                sound.append(entry)
            except Exception as alone:
                skipped.append(Skipped(entry.name, _why(alone)))
        if sound and len(sound) < len(entries):
            return _judge(sound, target, skipped)
        skipped.extend(Skipped(entry.name, _why(error)) for entry in sound)
        return None


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _brief(budget: str) -> str:
    """A budget for people: three digits of seconds are enough."""
    amount, _, kind = budget.partition(" ")
    return f"{float(amount):.3g} {kind}" if kind == "seconds" else budget


def _read(path: Path, root: Path, name: str, skipped: list[Skipped]) -> Entry:
    """Read one run, after a look at whether its files are its own."""
    for file in (*FILES, "reference.json", "audits.jsonl"):
        inside = path / file
        if inside.is_symlink() and not _leads_into(root, inside):
            raise RunError(f"{file} is a link out of the folder that was given")
        if inside.exists() and not inside.is_file():
            raise RunError(f"{file} is not a file")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run = read_run(path)
    if caught:
        skipped.append(Skipped(name, "the last line of a log was cut off; the rest is shown"))
    run = replace(run, config=cut(run.config), environment=cut(run.environment))
    curve = curve_of(run)
    if not run.metrics:
        raise RunError("it has logged nothing yet")
    return Entry(name, run, curve, _reference(path))


def _leads_into(root: Path, link: Path) -> bool:
    try:
        return root in link.resolve().parents
    except (OSError, RuntimeError):  # it leads to itself
        return False


def _reference(path: Path) -> dict[str, float]:
    content = read_attached(path, "reference.json") or {}
    return {str(k): float(v) for k, v in content.items() if isinstance(v, (int, float))}


def _one_each(entries: Sequence[Entry], skipped: list[Skipped]) -> list[Entry]:
    """One run of each arm and seed: a finished one before others, then by name."""
    order = sorted(entries, key=lambda e: (e.run.status != "finished", e.name))
    kept: dict[tuple[str, int], Entry] = {}
    for entry in order:
        twin = kept.setdefault((arm_of(entry.run), entry.curve.seed), entry)
        if twin is not entry:
            skipped.append(Skipped(entry.name, f"of the same arm and seed as {twin.name}"))
    return sorted(kept.values(), key=lambda e: (e.curve.arm, e.curve.seed))
