"""The numbers of a report as tables: rows of strings, made from runs."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sifting.report.bands import quality, shown
from sifting.report.palette import CLOCKS
from sifting.report.reading import Entry, Experiment
from sifting.report.sanitize import clip
from sifting.verdict.curves import Floats, text

MOST_ROWS, MOST_COLUMNS, MOST_LETTERS = 300, 25, 300
MOST_STEPS = 40  # evaluations of an arm in a table
AXES = {"seconds": "training seconds", "reference": "reference seconds", "samples": "samples"}


@dataclass(frozen=True)
class Table:
    """A caption, column names, and rows of strings; the first column names the row."""

    caption: str
    columns: list[str]
    rows: list[list[str]]

    def fitted(self) -> Table:
        """The table without what nobody reads: rows and columns beyond some, endless fields."""
        columns = [clip(name, MOST_LETTERS) for name in self.columns[:MOST_COLUMNS]]
        rows = [
            [clip(cell, MOST_LETTERS) for cell in row[:MOST_COLUMNS]]
            for row in self.rows[:MOST_ROWS]
        ]
        if len(self.rows) > MOST_ROWS:
            more = f"… {len(self.rows) - MOST_ROWS:,} more rows"
            rows.append([more, *[""] * (len(columns) - 1)])
        more = f"; {len(self.columns) - MOST_COLUMNS:,} columns are left out" * (
            len(self.columns) > MOST_COLUMNS
        )
        return Table(clip(self.caption, MOST_LETTERS) + more, columns, rows)


def number(value: float, digits: int = 4) -> str:
    """A number people can read.

    >>> number(0.000123), number(1234567.0), number(12.3456)
    ('0.000123', '1,234,567', '12.35')
    """
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}" if value else "0"


def learning_table(experiment: Experiment, axis: str) -> Table:
    """The evaluations of each arm: means over seeds."""
    verdict, rows = experiment.verdict, []
    for arm, entries in list(experiment.arms.items())[:MOST_ROWS]:
        at: dict[float, list[tuple[float, float]]] = {}
        for entry in shown(entries):
            curve = entry.curve
            for step, spent, value in zip(curve.steps, curve.axis(axis), curve.values, strict=True):
                at.setdefault(float(step), []).append((float(spent), float(value)))
        for step in _thin(np.array(sorted(at)), MOST_STEPS):
            points = at[float(step)]
            spent_mean, value_mean = (
                statistics.fmean(column) for column in zip(*points, strict=True)
            )
            rows.append(
                [
                    arm,
                    number(step),
                    number(spent_mean),
                    _merit(verdict, value_mean),
                    str(len(points)),
                ]
            )
    merit = f"{verdict.metric} %" if verdict.percent else verdict.metric
    columns = ["arm", "updates", AXES[axis], merit, "seeds"]
    return Table(f"Mean {verdict.metric} at each evaluation", columns, rows)


def _merit(verdict: Any, value: float) -> str:
    return f"{100 * value:.2f}" if verdict.percent else f"{value:.4g}"


def quality_table(experiment: Experiment) -> Table:
    """Recall and ρ_approx of each arm over training."""
    rows = []
    for arm, entries in list(experiment.arms.items())[:MOST_ROWS]:
        recall, rho = (quality(entries, name) for name in ("recall", "rho_approx"))
        if recall is None or rho is None:
            continue
        for step in _thin(rho.x, 12):
            values = [float(np.interp(step, b.x, b.mean)) for b in (recall, rho)]
            rows.append([arm, number(float(step)), *(f"{v:.3f}" for v in values), str(rho.seeds)])
    return Table(
        "Selection quality, means over seeds",
        ["arm", "updates", "recall", "ρ_approx", "seeds"],
        rows,
    )


def _thin(x: Floats, most: int) -> Floats:
    """At most so many of the points, the last among them."""
    if len(x) <= most:
        return x
    at = np.unique(np.linspace(0, len(x) - 1, most).round().astype(int))
    return np.asarray(x[at])


def clocks(entries: Sequence[Entry], axis: str) -> dict[str, float]:
    """Mean seconds of each clock over the runs of an arm."""
    name = "reference" if axis == "reference" else "seconds"
    found = [e.last.get(name) for e in shown(entries)]
    known = [clock for clock in found if isinstance(clock, Mapping)]
    return {
        clock: statistics.fmean([_spent(seconds, clock) for seconds in known] or [0.0])
        for clock in CLOCKS
    }


def _spent(seconds: Mapping[str, Any], clock: str) -> float:
    """Of a clock; auditing is all that is measured, of which a log has the parts."""
    names = (clock, "observing", "looking", "trials") if clock == "auditing" else (clock,)
    return sum(plain(seconds.get(name)) for name in names)


def plain(value: Any) -> float:
    """A count or a time from a log; 0 where it is none."""
    return float(value) if isinstance(value, (int, float)) and 0 <= value < 1e12 else 0.0


def clock_table(experiment: Experiment) -> Table:
    """Seconds by what they were spent on, per arm."""
    rows = []
    axes = ["seconds"] + ["reference"] * (experiment.verdict.axis == "reference")
    for arm, entries in experiment.arms.items():
        for axis in axes:
            spent = clocks(entries, axis)
            label = arm if len(axes) == 1 else f"{arm}, {'measured' if axis == 'seconds' else axis}"
            training = sum(v for k, v in spent.items() if k != "evaluation")
            rows.append([label, *(number(spent[c]) for c in CLOCKS), number(training)])
    return Table("Seconds of a run, means over seeds", ["arm", *CLOCKS, "all but evaluation"], rows)


def token_table(experiment: Experiment) -> Table:
    """Tokens that each arm saw and trained, and how many of them in a second; of text alone."""
    rows = []
    for arm, entries in list(experiment.arms.items())[:MOST_ROWS]:
        counts = [
            [plain(entry.last.get(name)) for name in ("tokens_seen", "tokens_trained")]
            for entry in shown(entries)
        ]
        if not counts or not any(map(any, counts)):
            continue
        seen, trained = (statistics.fmean(column) for column in zip(*counts, strict=True))
        spent = sum(v for k, v in clocks(entries, "seconds").items() if k != "evaluation")
        pace = [number(value / spent) if spent else "–" for value in (seen, trained)]
        rows.append([arm, number(seen), number(trained), *pace, str(len(counts))])
    columns = ["arm", "seen", "trained", "seen a second", "trained a second", "seeds"]
    return Table("Tokens of a run, means over seeds", columns, rows)


def exit_table(experiment: Experiment) -> Table:
    """Scoring time by exit, as the paper has it."""
    rows: list[tuple[Any, list[str]]] = []
    calibrated = all(e.reference for e in experiment.entries)
    for arm, entries in experiment.arms.items():
        selector = entries[0].run.config.get("selector")
        if arm in (experiment.verdict.baseline, experiment.verdict.control):
            continue
        if not isinstance(selector, Mapping):
            selector = {}
        cost = [c for e in entries if (c := _per_operation(e, calibrated=calibrated)) is not None]
        if not cost:
            continue
        scoring, forward, backward = (
            statistics.fmean(column) for column in zip(*cost, strict=True)
        )
        exit = text(selector.get("exit", "–"))
        update = forward + backward
        share = f"{scoring / update:.3f}" if update else "–"
        row = [exit, arm, *(_seconds(s) for s in (scoring, forward, backward)), share]
        rows.append((_natural(exit), row))
    rows.sort(key=lambda pair: (pair[0], pair[1][1]))
    kind = "calibrated" if calibrated else "measured"
    return Table(
        f"Seconds of one selection and of one update's passes, {kind}",
        ["exit", "arm", "scoring", "forward", "backward", "scoring ÷ (forward + backward)"],
        [row for _, row in rows],
    )


def _seconds(value: float) -> str:
    return f"{value:.3g}" if value >= 0.1 else f"{1000 * value:.3g} ms"


def _natural(name: str) -> list[tuple[int, Any]]:
    """A key that puts exit 2 before exit 12."""
    return [(0, int(p)) if p.isdecimal() else (1, p) for p in re.split(r"(\d+)", name) if p]


def _per_operation(entry: Entry, *, calibrated: bool) -> tuple[float, float, float] | None:
    if calibrated:
        ref = entry.reference
        return ref.get("scoring", 0.0), ref.get("forward", 0.0), ref.get("backward", 0.0)
    seconds, step = entry.last.get("seconds"), plain(entry.last.get("step"))
    if not isinstance(seconds, Mapping) or not step:
        return None
    sifting = (entry.run.summary or {}).get("sifting")
    counted = sifting.get("selections") if isinstance(sifting, Mapping) else None
    per = [plain(counted) or step, step, step]
    spent = [plain(seconds.get(name)) for name in ("scoring", "forward", "backward")]
    scoring, forward, backward = (s / n for s, n in zip(spent, per, strict=True))
    return scoring, forward, backward
