"""The metric against time and against samples."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sifting.report import collect
from sifting.report.figures.canvas import WIDE
from sifting.report.figures.learning import drawings
from tests.helpers.run_folders import made, write


def test_a_line_for_each_arm_against_time_and_against_samples(tmp_path: Path) -> None:
    for arm in ("baseline", "sift"):
        for seed in range(2):
            write(made(arm, seed, points=4), tmp_path)
    time, samples = drawings(collect([tmp_path]).experiments[0])
    assert (time.key, samples.key) == ("time", "samples")
    assert [mark.label for mark in time.marks] == ["baseline", "sift", "target"]
    for drawing, last in ((time, 200 * 0.053), (samples, 32 * 200)):
        plot = drawing.plot(WIDE)
        assert len(plot.lines) == 2
        assert plot.lines[0].x[-1] == pytest.approx(last)
        assert plot.lines[0].y[-1] == pytest.approx(100 * 0.8 * (1 - 2.718281828**-3))
        (target,) = plot.rules
        assert target <= plot.lines[0].y[-1]
        assert plot.y.label == "accuracy (%)"


def test_what_differs_is_in_the_frame_not_the_first_steep_part(tmp_path: Path) -> None:
    write(made("baseline", 0, points=40), tmp_path)
    time, _ = drawings(collect([tmp_path]).experiments[0])
    plot = time.plot(WIDE)
    values = plot.lines[0].y
    assert values[0] < plot.y.low < values[5]


def test_without_an_evaluation_there_is_nothing_to_draw(tmp_path: Path) -> None:
    run = made("baseline", 0, points=3)
    train = [m for m in run.metrics if m["kind"] == "train"]
    write(replace(run, metrics=train, status="running"), tmp_path)
    assert list(drawings(collect([tmp_path]).experiments[0])) == []
