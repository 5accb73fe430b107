"""An autopilot's decisions and trials in a run's log: read, and harmless where damaged."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from sifting.report import collect
from sifting.report.decisions import decision_table, read_decisions
from sifting.report.page import page
from sifting.report.reading import Entry
from tests.helpers.autopilot_logs import DAMAGED, RECORDS, folder_of


def entry_of(folder: Path) -> Entry:
    (experiment,) = collect([folder]).experiments
    return next(entry for entry in experiment.entries if entry.curve.arm == "auto")


def test_decisions_and_trials_are_read(tmp_path: Path) -> None:
    decided, tried = read_decisions(entry_of(folder_of(tmp_path, RECORDS)))
    assert [one.ratio for one in decided] == [1, 1, 2, 2, 1]
    assert [one.changed for one in decided] == [False, False, True, False, True]
    assert decided[2].share == 0.75
    assert decided[2].agreement == 1.2
    assert [(one.ratio, one.harms) for one in tried] == [(4, True), (2, False)]
    table = decision_table("auto", decided, tried)
    assert [row[0] for row in table.rows] == ["50", "100", "150", "150", "150", "250", "300"]


def test_reasons_are_shown_as_text_under_their_heading(tmp_path: Path) -> None:
    source = page(collect([folder_of(tmp_path, RECORDS)]), written="now")
    assert "What the autopilot decided" in source
    assert "<b>150</b>" not in source


def test_damaged_records_are_left_out(tmp_path: Path) -> None:
    entry = entry_of(folder_of(tmp_path, RECORDS))
    decided, tried = read_decisions(replace(entry, run=replace(entry.run, metrics=DAMAGED)))
    assert [one.update for one in decided] == [320]
    assert decided[0].share != decided[0].share
    assert not tried
