"""What stood around the runs: settings, machine, versions, every run. Tables, made from runs."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from sifting.report.reading import Experiment
from sifting.report.sanitize import clip
from sifting.report.tables import MOST_COLUMNS, Table, number, plain
from sifting.verdict.curves import text
from sifting.verdict.formats import short, shown_metric

LONGEST = 300  # characters of a setting, or of its name


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings with dotted names.

    >>> flat({"a": {"b": 1}, "c": "x"})
    {'a.b': '1', 'c': 'x'}
    """
    found: dict[str, str] = {}
    for key, value in config.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and prefix.count(".") < 8:
            found.update(flat(value, f"{clip(name, LONGEST)}."))
        else:
            found[clip(name, LONGEST)] = clip(text(value), LONGEST)
    return found


def settings_tables(experiment: Experiment) -> tuple[Table, Table]:
    """What differs between the arms, and what they have in common."""
    by_arm = {
        arm: [flat(e.run.config) for e in entries]
        for arm, entries in list(experiment.arms.items())[:MOST_COLUMNS]
    }
    keys = _unique(k for configs in by_arm.values() for config in configs for k in config)
    different, common = [], []
    for key in keys:
        if key in ("arm", "seed"):
            continue
        values = [" / ".join(_unique(c.get(key, "–") for c in cs)) for cs in by_arm.values()]
        if len(set(values)) > 1:
            different.append([key, *values])
        else:
            common.append([key, values[0]])
    return (
        Table("Settings that differ between the arms", ["setting", *by_arm], different),
        Table("Settings that all runs share", ["setting", "value"], common),
    )


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def machines(experiment: Experiment) -> Table:
    """Machine and versions; where runs differ, all values."""
    found: dict[str, list[str]] = {}
    for entry in experiment.entries:
        record = {k: v for k, v in entry.run.environment.items() if k not in ("command", "load")}
        for key, value in flat(record).items():
            found.setdefault(key, []).append(value)
    rows = [[key.removeprefix("versions."), " / ".join(_unique(v))] for key, v in found.items()]
    for arm, entries in list(experiment.arms.items())[:MOST_COLUMNS]:
        loads = [
            plain(m["load"])
            for e in entries
            for m in e.run.metrics
            if isinstance(m.get("load"), (int, float))
        ]
        if loads:
            shown = f"{statistics.fmean(loads):.2f} on average, {max(loads):.2f} at most"
            rows.append([f"load during {arm}", shown])
    return Table("Machine, versions and load (1-minute average)", ["", "value"], rows)


def run_table(experiment: Experiment) -> Table:
    """Every run."""
    rows = []
    for entry in experiment.entries:
        curve, last = entry.curve, entry.last
        value = float(curve.values[-1]) if len(curve) else None
        final = "–" if value is None else shown_metric(experiment.verdict, value).bare()
        time = number(float(curve.seconds[-1])) if len(curve) else "–"
        step = short(plain(last.get("step")), 0)
        rows.append([entry.name, curve.arm, str(curve.seed), entry.run.status, step, final, time])
    columns = ["run", "arm", "seed", "status", "updates", experiment.verdict.metric, "seconds"]
    return Table("Every run, with its last evaluation", columns, rows)
