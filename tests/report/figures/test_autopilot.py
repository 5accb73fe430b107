"""What an autopilot measured and decided, drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sifting.report import collect
from sifting.report.figures import drawings
from sifting.report.figures.autopilot import drawings as autopilot_drawings
from sifting.report.figures.canvas import WIDE
from tests.helpers.autopilot_logs import DAMAGED, RECORDS, folder_of


def test_evidence_and_ratio_are_drawn_of_the_first_run_that_decided(tmp_path: Path) -> None:
    (experiment,) = collect([folder_of(tmp_path, RECORDS)]).experiments
    evidence, ratio = autopilot_drawings(experiment)
    assert (evidence.key, ratio.key) == ("evidence", "ratio")
    assert evidence.title == "What it went by (auto, seed 0)"
    kinds = [row[1] for row in ratio.table.rows]
    assert kinds == ["look", "look", "decision", "trial", "trial", "look", "decision"]
    assert any("harm" in row[-1] for row in ratio.table.rows)
    assert [mark.label for mark in ratio.marks] == ["ratio; mark: decision", "trial; ×: harm"]
    for drawing in (evidence, ratio):
        assert drawing.file("png")[:4] == b"\x89PNG"


def test_a_run_that_selected_goes_before_one_that_never_did(tmp_path: Path) -> None:
    (experiment,) = collect([folder_of(tmp_path, RECORDS)]).experiments
    entry = next(e for e in experiment.entries if e.curve.arm == "auto")
    never = replace(
        entry,
        run=replace(entry.run, metrics=[r for r in RECORDS if not r.get("changed")]),
        curve=replace(entry.curve, seed=7),
    )
    for entries, seed in (([never, entry], 0), ([never], 7)):
        first, _ = autopilot_drawings(replace(experiment, entries=entries))
        assert first.title == f"What it went by (auto, seed {seed})"


def test_the_ratio_is_what_was_decided_last_until_the_end(tmp_path: Path) -> None:
    (experiment,) = collect([folder_of(tmp_path, RECORDS)]).experiments
    *_, ratio = autopilot_drawings(experiment)
    steps = ratio.plot(WIDE).lines[0]
    assert steps.joined == "steps"
    assert list(steps.x) == [0, 50, 100, 150, 250, 300, 400]
    assert list(steps.y) == [1, 1, 1, 2, 2, 1, 1]


def test_runs_without_an_autopilot_have_no_such_figure(tmp_path: Path) -> None:
    (experiment,) = collect([folder_of(tmp_path, [])]).experiments
    assert not {"evidence", "ratio"} & {drawing.key for drawing in drawings(experiment)}


def test_damaged_records_are_drawn_without(tmp_path: Path) -> None:
    (experiment,) = collect([folder_of(tmp_path, RECORDS)]).experiments
    entry = next(e for e in experiment.entries if e.curve.arm == "auto")
    damaged = replace(entry, run=replace(entry.run, metrics=DAMAGED))
    shown = replace(experiment, entries=(damaged,))
    assert all(drawing.file("svg") for drawing in autopilot_drawings(shown))
