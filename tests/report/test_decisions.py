"""An autopilot's decisions and trials in a report: read, drawn, and harmless where damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from sifting.report import collect
from sifting.report.decisions import read_decisions
from sifting.report.figures import autopilot, drawings
from sifting.report.page import page
from tests.helpers.run_folders import made, write


def decision(
    step: int, share: float | None, ratio: int, *, changed: bool = False
) -> dict[str, Any]:
    judged = [
        {
            "scorer": scorer,
            "ratio": r,
            "kept_loss": 0.55 + 0.0004 * step,
            "agreement": 0.9 + 0.3 * (r == 2),
        }
        for scorer in ("input", "memory")
        for r in (2, 4)
    ]
    if share is not None:
        judged[0]["share"] = share
    return {
        "kind": "decision",
        "step": step,
        "scorer": "input" if ratio > 1 else "",
        "ratio": ratio,
        "changed": changed,
        "why": f"<b>{step}</b>",
        "judged": judged,
    }


def trial(step: int, ratio: int, *, harms: bool) -> dict[str, Any]:
    about = {"kind": "trial", "step": step, "scorer": "input", "ratio": ratio}
    return {**about, "difference": 0.02 if harms else -0.01, "error": 0.004, "harms": harms}


RECORDS = [
    decision(50, None, 1),
    decision(100, 0.58, 1),
    trial(150, 4, harms=True),
    trial(150, 2, harms=False),
    decision(150, 0.75, 2, changed=True),
    decision(250, 0.83, 2),
    decision(300, 0.6, 1, changed=True),
]
DAMAGED: list[dict[str, Any]] = [
    {"kind": "decision"},
    {"kind": "decision", "step": "x", "ratio": 2},
    {"kind": "decision", "step": 10**400, "ratio": 2},
    {"kind": "trial", "step": 10, "ratio": 10**9},
    {"kind": "decision", "step": 320, "ratio": 2, "judged": [3, {"ratio": 2, "share": "much"}]},
]


def folder_of(tmp_path: Path, records: list[dict[str, Any]]) -> Path:
    folder = tmp_path / "runs"
    write(made("baseline", 0, points=8), folder)
    run = made("auto", 0, points=8)
    metrics = [*run.metrics[:4], *records, *run.metrics[4:]]
    write(replace(run, metrics=metrics), folder)
    return folder


def test_decisions_and_trials_are_read_and_drawn(tmp_path: Path) -> None:
    (experiment,) = collect([folder_of(tmp_path, RECORDS)]).experiments
    entry = next(e for e in experiment.entries if e.curve.arm == "auto")
    decided, tried = read_decisions(entry)
    assert [one.ratio for one in decided] == [1, 1, 2, 2, 1]
    assert [one.changed for one in decided] == [False, False, True, False, True]
    assert decided[2].share == 0.75
    assert decided[2].agreement == 1.2
    assert [(one.ratio, one.harms) for one in tried] == [(4, True), (2, False)]
    found = {drawing.key: drawing for drawing in drawings(experiment)}
    assert {"evidence", "ratio"} <= set(found)
    table = found["ratio"].table
    assert [row[1] for row in table.rows] == [
        "look",
        "look",
        "decision",
        "trial",
        "trial",
        "look",
        "decision",
    ]
    assert any("harm" in row[-1] for row in table.rows)
    for key in ("evidence", "ratio"):
        assert found[key].file("png")[:4] == b"\x89PNG"
    source = page(collect([folder_of(tmp_path / "again", RECORDS)]), written="now")
    assert "What the autopilot decided" in source
    assert "<b>150</b>" not in source


def test_runs_without_an_autopilot_have_no_such_figure(tmp_path: Path) -> None:
    (experiment,) = collect([folder_of(tmp_path, [])]).experiments
    assert not {"evidence", "ratio"} & {drawing.key for drawing in drawings(experiment)}


def test_damaged_records_are_left_out(tmp_path: Path) -> None:
    (experiment,) = collect([folder_of(tmp_path, RECORDS)]).experiments
    entry = next(e for e in experiment.entries if e.curve.arm == "auto")
    damaged = replace(entry, run=replace(entry.run, metrics=DAMAGED))
    decided, tried = read_decisions(damaged)
    assert [one.update for one in decided] == [320]
    assert decided[0].share != decided[0].share
    assert not tried
    shown = replace(experiment, entries=(damaged,))
    assert all(drawing.file("svg") for drawing in autopilot.drawings(shown))
