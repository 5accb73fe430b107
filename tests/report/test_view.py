"""What a page shows of an experiment, as plain values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sifting.report import collect
from sifting.report.reading import Experiment
from sifting.report.view import MOST_WARNINGS, OUTCOMES, view, warnings_of
from tests.helpers.run_folders import made, write, write_comparison


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Experiment:
    (found,) = collect([write_comparison(tmp_path_factory.mktemp("runs"))]).experiments
    return found


def test_in_full_it_has_everything_and_in_brief_its_verdict_alone(experiment: Experiment) -> None:
    full, brief = (view(experiment, 3, full=full) for full in (True, False))
    assert [group.title for group in full.groups][:2] == ["Learning curves", "Cost"]
    assert [group.cost for group in full.groups] == [False, True, False]
    assert full.exits is not None
    assert full.runs is not None
    assert len(full.sentences) == 3
    assert (brief.groups, brief.runs, brief.exits) == ((), None, None)
    for shown in (full, brief):
        assert (shown.id, shown.problem) == ("e3", "")
        assert shown.outcome in OUTCOMES
        assert shown.overall.bare() == experiment.verdict.overall.replace("`", "")


def test_figures_come_in_two_sizes_with_ids_that_no_other_has(experiment: Experiment) -> None:
    figures = [f for group in view(experiment, 1, full=True).groups for f in group.figures]
    assert [f.id for f in figures] == ["e1-time", "e1-samples", "e1-clocks", "e1-rho", "e1-recall"]
    for figure in figures:
        assert f'id="{figure.id}-title"' in figure.wide
        assert f'id="{figure.id}-n-title"' in figure.narrow


def test_a_group_has_one_legend_of_arms_and_then_lines(experiment: Experiment) -> None:
    *_, quality = view(experiment, 0, full=True).groups
    labels = [mark.label for mark in quality.marks]
    assert labels == ["random-keep", "sift", "break-even", "random choice"]


def test_what_cannot_be_drawn_or_shown_is_named(
    experiment: Experiment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sifting.report.figures.clocks._plot", lambda *_: 1 / 0)
    figures = {f.id: f.problem for g in view(experiment, 0, full=True).groups for f in g.figures}
    assert figures["e0-clocks"] == "unexpected ZeroDivisionError: division by zero"
    assert not figures["e0-time"]
    monkeypatch.setattr("sifting.report.view.wording.notes", lambda _: {}["x"])
    broken = view(experiment, 0, full=True)
    assert broken.problem == "unexpected KeyError: 'x'"
    assert broken.title == experiment.title


def test_warnings_are_said_once_with_the_runs_they_are_of(tmp_path: Path) -> None:
    for arm, seeds in (("baseline", (0,)), ("sift", (0, 1))):
        for seed in seeds:
            run = made(arm, seed, points=3)
            said = [{"kind": "warning", "message": "worse than random"}] * 2
            if arm == "baseline":
                said = [{"kind": "warning", "message": f"n{i}"} for i in range(MOST_WARNINGS + 5)]
            write(replace(run, metrics=[*run.metrics, *said]), tmp_path)
    (experiment,) = collect([tmp_path]).experiments
    assert len(warnings_of(experiment)) == MOST_WARNINGS
    sift = replace(
        experiment, entries=tuple(e for e in experiment.entries if e.curve.arm == "sift")
    )
    (warned,) = warnings_of(sift)
    assert warned.message == "worse than random"
    assert warned.runs.plain() == "`sift`, seeds 0, 1"
