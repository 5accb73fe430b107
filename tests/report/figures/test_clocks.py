"""Where the time goes: a bar for each arm."""

from __future__ import annotations

from pathlib import Path

import pytest

from sifting.report import collect
from sifting.report.figures.canvas import NARROW, WIDE
from sifting.report.figures.clocks import drawings
from sifting.report.palette import CLOCKS, THEMED
from tests.helpers.run_folders import made, write


@pytest.mark.parametrize("canvas", [WIDE, NARROW], ids=["wide", "narrow"])
def test_a_bar_has_the_seconds_of_each_clock_that_ran(tmp_path: Path, canvas) -> None:
    for arm, scoring in (("baseline", 0.0), ("sift", 0.2)):
        write(made(arm, 0, points=4, scoring=scoring), tmp_path)
    (drawing,) = drawings(collect([tmp_path]).experiments[0])
    assert [mark.label for mark in drawing.marks] == [c for c in CLOCKS if c != "auditing"]
    (axes,) = drawing.draw(canvas).axes
    ran = {THEMED.clocks[CLOCKS.index(c)]: c for c in CLOCKS}
    bars: dict[float, dict[str, float]] = {}
    for bar in axes.patches:
        colour = "#" + "".join(f"{round(255 * c):02x}" for c in bar.get_facecolor()[:3])
        row = bars.setdefault(round(bar.get_y() + bar.get_height() / 2), {})
        row[ran[colour]] = bar.get_width()
    assert "scoring" not in bars[0], "a clock that never ran has no bar"
    assert bars[1]["scoring"] == pytest.approx(0.2 * 0.05 * 200)
    assert [bars[arm]["backward"] for arm in (0, 1)] == pytest.approx([0.03 * 200] * 2)
    assert [t.get_text() for t in axes.texts if t.get_text()[-1] == "s"] == ["12.6 s", "14.6 s"]


def test_reference_time_is_said_and_drawn(tmp_path: Path) -> None:
    write(made("baseline", 0, points=4, reference=True), tmp_path)
    (drawing,) = drawings(collect([tmp_path]).experiments[0])
    assert drawing.about.endswith("means over seeds, reference time.")
    (axes,) = drawing.draw(WIDE).axes
    assert sum(bar.get_width() for bar in axes.patches) == pytest.approx(0.9 * 12.6)
