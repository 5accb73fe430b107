"""The numbers of a report, as tables."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sifting.cli import main as cli
from sifting.report import collect, tables
from sifting.report.figures import drawings
from tests.helpers.run_folders import SPEEDS, made, write


def test_reference_time_is_shown_where_runs_have_it(tmp_path: Path) -> None:
    for arm in SPEEDS:
        for seed in range(3):
            path = write(made(arm, seed, reference=True, points=4, scoring=0.1), tmp_path)
            costs = {"scoring": 0.004, "forward": 0.018, "backward": 0.022}
            (path / "reference.json").write_text(json.dumps(costs))
    experiment = collect([tmp_path]).experiments[0]
    assert experiment.verdict.axis == "reference"
    assert {d.key: d.title for d in drawings(experiment)}["time"].endswith("reference time")
    assert tables.exit_table(experiment).rows == [["1", "sift", "4 ms", "18 ms", "22 ms", "0.100"]]
    named = [row[0] for row in tables.clock_table(experiment).rows]
    assert named[:2] == ["baseline, measured", "baseline, reference"]


def test_tokens_are_shown_where_runs_count_them(tmp_path: Path) -> None:
    for arm in ("baseline", "random", "sift"):
        run = made(arm, 0, points=4)
        if arm == "sift":
            for record in run.metrics:
                record.update(tokens_seen=20 * record["step"], tokens_trained=10 * record["step"])
        write(run, tmp_path)
    experiment = collect([tmp_path]).experiments[0]
    found = tables.token_table(experiment)
    assert [row[:3] for row in found.rows] == [["sift", "4000", "2000"]]
    assert float(found.rows[0][3]) == pytest.approx(2 * float(found.rows[0][4]), rel=0.02)
    page = tmp_path / "page.html"
    assert cli.main(["report", str(tmp_path), "-o", str(page)]) == 0
    assert "<h4>Tokens</h4>" in page.read_text()
