"""Where the time goes: a bar for each arm."""

from __future__ import annotations

from pathlib import Path

import pytest

from sifting.report import collect
from sifting.report.figures.canvas import NARROW, WIDE, Canvas
from sifting.report.figures.clocks import drawings
from sifting.report.palette import CLOCKS
from tests.helpers.run_folders import made, write


@pytest.mark.parametrize("canvas", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_bar_has_the_seconds_of_each_clock_that_ran(tmp_path: Path, canvas: Canvas) -> None:
    for arm, scoring in (("baseline", 0.0), ("sift", 0.2)):
        write(made(arm, 0, points=4, scoring=scoring), tmp_path)
    (drawing,) = drawings(collect([tmp_path]).experiments[0])
    assert [mark.label for mark in drawing.marks] == [c for c in CLOCKS if c != "auditing"]
    plot = drawing.plot(canvas)
    bars: list[dict[str, float]] = [{}, {}]
    for bar in plot.bars:
        bars[bar.row][CLOCKS[bar.clock]] = bar.length
    assert "scoring" not in bars[0], "a clock that never ran has no bar"
    assert bars[1]["scoring"] == pytest.approx(0.2 * 0.05 * 200)
    assert [bars[arm]["backward"] for arm in (0, 1)] == pytest.approx([0.03 * 200] * 2)
    said = [note.text for note in plot.notes if note.where == "beside"]
    assert said == ["12.6 s", "14.6 s"]
    assert plot.x.high > 14.6, "there is room for them"


def test_reference_time_is_said_and_drawn(tmp_path: Path) -> None:
    write(made("baseline", 0, points=4, reference=True), tmp_path)
    (drawing,) = drawings(collect([tmp_path]).experiments[0])
    assert drawing.about.endswith("means over seeds, reference time.")
    assert sum(bar.length for bar in drawing.plot(WIDE).bars) == pytest.approx(0.9 * 12.6)
