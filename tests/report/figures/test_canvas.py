"""What every figure is drawn on: sizes, legends and bands."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from sifting.report.bands import Band
from sifting.report.figures.canvas import (
    NARROW,
    WIDE,
    Canvas,
    Drawing,
    Mark,
    arm_marks,
    band_line,
    capital,
    heights,
    thousands,
)
from sifting.report.figures.plot import Plot, axis
from sifting.report.tables import Table

BAND = Band(np.arange(5.0), np.arange(5.0), np.ones(5), seeds=3)


def plotted(canvas: Canvas) -> Plot:
    sides = (axis(name, (0.0, 5.0), canvas.across()) for name in ("x", "y"))
    return Plot(*sides, lines=(band_line(2, BAND, arms=1),))


DRAWING = Drawing(
    "key",
    "group",
    "Title <1>",
    "About & so on.",
    Table("", [], []),
    (Mark("arm", "mine", 2),),
    plotted,
)


def test_a_band_is_a_line_with_its_spread() -> None:
    line = band_line(2, BAND, arms=1, scale=100.0)
    assert line.style == 2
    assert list(line.y) == [0, 100, 200, 300, 400]
    assert line.spread is not None
    assert line.spread.tolist() == [100.0] * 5
    assert (min(heights([line])), max(heights([line]))) == (-100, 500)
    assert band_line(3, replace(BAND, seeds=1), arms=1).spread is None, "one seed has no spread"


def test_many_points_are_shared_among_the_arms() -> None:
    x = np.arange(10_000.0)
    long = Band(x, np.sin(x), np.zeros(10_000), seeds=1)
    for arms, most in ((1, 4 * 200), (12, 4 * 100)):
        line = band_line(0, long, arms=arms)
        assert len(line.x) <= most
        assert len(line.x) // line.every <= 7, "a few marks"


def test_on_a_page_a_figure_has_names_ids_of_its_own_and_no_size() -> None:
    for canvas in (WIDE, NARROW):
        source = DRAWING.svg("e0-key", canvas)
        assert '<title id="e0-key-title">Title &lt;1&gt;</title>' in source
        assert "About &amp; so on." in source
        assert all(i.startswith("e0-key") for i in re.findall(r'\bid="([^"]+)"', source))
        assert "var(--s2)" in source
        assert not re.search(r'<svg[^>]* (width|height)="', source)


def test_as_a_file_it_has_a_legend_and_the_same_bytes_again() -> None:
    source = DRAWING.file("svg")
    assert b">mine<" in source
    assert source == DRAWING.file("svg")
    assert DRAWING.file("png").startswith(b"\x89PNG")


def test_axes_are_as_long_as_margins_leave_them() -> None:
    assert WIDE.size == (5.5, 3.8)
    assert WIDE.across(left=1.0) - NARROW.across(left=1.0) == pytest.approx(5.5 - 3.35)
    assert 0 < NARROW.up < NARROW.height


def test_words_of_headings_and_ticks() -> None:
    assert capital("accuracy of x") == "Accuracy of x"
    assert [thousands(v) for v in (1e9, 2.5e6, 64_000.0, 999.0)] == ["1G", "2.5M", "64k", "999"]


def test_a_legend_lists_what_was_drawn_and_no_endless_name() -> None:
    marks = arm_marks(["a", "b" * 100, "c"], [0, 1])
    assert [(mark.index, len(mark.label)) for mark in marks] == [(0, 1), (1, 48)]
