"""Logs of an autopilot's decisions and trials, made up for the tests of the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

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
