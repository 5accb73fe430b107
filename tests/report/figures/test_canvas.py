"""What every figure is drawn on: sizes, legends and bands."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure

from sifting.report.bands import Band
from sifting.report.figures.canvas import (
    FILE,
    NARROW,
    WIDE,
    Canvas,
    Drawing,
    Mark,
    arm_marks,
    dashed,
    new_axes,
    plot_band,
    set_margins,
    thousands,
)
from sifting.report.palette import PLAIN
from sifting.report.tables import Table

BAND = Band(np.arange(5.0), np.arange(5.0), np.ones(5), seeds=3)


def drawn(canvas: Canvas) -> Figure:
    figure, axes = new_axes(canvas)
    plot_band(axes, 2, BAND, canvas, arms=1)
    return figure


DRAWING = Drawing(
    "key",
    "group",
    "Title <1>",
    "About & so on.",
    Table("", [], []),
    (Mark("arm", "mine", 2),),
    drawn,
)


def test_a_band_is_a_line_with_its_spread_in_the_arms_colour() -> None:
    figure, axes = new_axes(FILE)
    plot_band(axes, 2, BAND, FILE, arms=1, scale=100.0)
    (line,), (spread,) = axes.lines, axes.collections
    assert line.get_color() == PLAIN.of(2)
    assert line.get_ydata().tolist() == [0, 100, 200, 300, 400]
    assert spread.get_paths()[0].get_extents().bounds == (0, -100, 4, 600)
    plot_band(axes, 3, replace(BAND, seeds=1), FILE, arms=1)
    assert len(axes.collections) == 1, "one seed has no spread"
    assert figure.axes == [axes]


def test_many_points_are_shared_among_the_arms() -> None:
    x = np.arange(10_000.0)
    long = Band(x, np.sin(x), np.zeros(10_000), seeds=1)
    _, axes = new_axes(FILE)
    for arms, most in ((1, 4 * 200), (12, 4 * 100)):
        plot_band(axes, 0, long, FILE, arms=arms)
        assert len(axes.lines[-1].get_xdata()) <= most


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


def test_margins_are_in_inches_whatever_the_size() -> None:
    for canvas in (WIDE, NARROW):
        figure, axes = new_axes(canvas)
        set_margins(figure, left=0.5)
        assert axes.get_position().x0 * canvas.width == pytest.approx(0.5)


def test_a_line_to_compare_with_and_ticks_that_fit() -> None:
    _, axes = new_axes(FILE)
    dashed(axes, 0.5, FILE)
    assert axes.lines[0].get_ydata() == [0.5, 0.5]
    assert [thousands(v) for v in (1e9, 2.5e6, 64_000.0, 999.0)] == ["1G", "2.5M", "64k", "999"]


def test_a_legend_lists_what_was_drawn_and_no_endless_name() -> None:
    marks = arm_marks(["a", "b" * 100, "c"], [0, 1])
    assert [(mark.index, len(mark.label)) for mark in marks] == [(0, 1), (1, 48)]
