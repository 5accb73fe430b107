"""The report as one page of HTML."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sifting.cli import main as cli
from sifting.report import collect
from sifting.report.figures import drawings
from sifting.report.page import page
from tests.helpers.pages import Text
from tests.helpers.run_folders import made, write, write_comparison


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_comparison(tmp_path / "runs")


def test_experiments_that_differ_are_judged_apart(runs: Path) -> None:
    for seed in range(3):
        write(replace(made("baseline", seed, recipe="bert"), path=Path(f"b{seed}")), runs)
    found = collect([runs])
    assert [e.title for e in found.experiments] == [
        "bert · accuracy · 1000 updates",
        "made · accuracy · 400 updates",
    ]
    source = page(found, written="now")
    assert source.count('<section class="experiment"') == 2
    ids = re.findall(r'\bid="([^"]+)"', source)
    assert len(ids) == len(set(ids))


def test_runs_without_a_selection_or_an_evaluation_are_still_shown(tmp_path: Path) -> None:
    run = made("baseline", 0, points=3)
    train = [m for m in run.metrics if m["kind"] == "train"]
    write(replace(run, metrics=train, status="running"), tmp_path)
    found = collect([tmp_path])
    assert [d.key for d in drawings(found.experiments[0])] == ["clocks"]
    assert "Cannot be judged" in page(found, written="now")


def test_a_run_without_an_evaluation_yet_does_not_cost_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside runs with reference times: one that has just begun, and one that diverged at once."""
    folder = tmp_path / "runs"
    for seed in range(3):
        write(made("baseline", seed, reference=True, points=4), folder)
    young = made("sift", 0, reference=True, points=4)
    train = [m for m in young.metrics if m["kind"] == "train"]
    write(replace(young, metrics=train[:1], status="running"), folder)
    broken = made("tuned", 0, reference=True, points=4, status="failed")
    log = [{**m, "accuracy": float("nan")} if m["kind"] == "eval" else m for m in broken.metrics]
    write(replace(broken, metrics=log), folder)
    out = tmp_path / "report.html"
    assert cli.main(["report", str(folder), "-o", str(out)]) == 0
    shown = Text(out.read_text(encoding="utf-8")).text
    assert collect([folder]).experiments[0].verdict.axis == "reference"
    assert "tuned cannot be judged: 0 of 1 runs finished, 1 failed." in shown
    assert "cannot be drawn" not in shown
    assert "unexpected" not in shown + capsys.readouterr().err


def test_a_page_of_many_experiments_stays_small(tmp_path: Path) -> None:
    for number in range(300):
        run = made("baseline", 0, points=2, recipe=f"recipe {number}")
        write(replace(run, path=Path(f"r{number}")), tmp_path)
    found = collect([tmp_path])
    source = page(found, written="now")
    assert len(source.encode()) < 3_000_000
    assert source.count('<section class="experiment"') == 300
    assert "Figures, settings and runs are shown of the first" in source


def test_long_logs_and_vast_settings_are_cut(tmp_path: Path) -> None:
    run = made("sift", 0, points=1)
    log = [
        {**m, "step": step, "samples_trained": step, "accuracy": 0.5 + 0.1 * np.sin(step)}
        for step in range(1, 10_000)
        for m in run.metrics
    ]
    vast = {**run.config, "note": "x" * 5_000_000, "keys": {str(i): i for i in range(5000)}}
    write(replace(run, metrics=log, config=vast), tmp_path)
    for seed in (1, 2):
        write(made("sift", seed, points=3), tmp_path)
    source = page(collect([tmp_path]), written="now")
    assert len(source.encode()) < 3_000_000
    assert "x" * 400 not in source
