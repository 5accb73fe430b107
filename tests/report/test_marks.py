"""Marks and dashes of lines as SVG has them."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from sifting.report.marks import OUTLINES, dash_of, length, mark_path, sign
from sifting.report.palette import MARKS, PLAIN, THEMED


@pytest.mark.parametrize("mark", MARKS)
def test_every_mark_is_around_its_middle(mark: str) -> None:
    path = mark_path(mark, 100.0, 50.0, 6.0)
    assert path.startswith("M")
    for x, y in OUTLINES.get(mark, ()):
        assert abs(x) <= 0.7
        assert abs(y) <= 0.7


def test_marks_differ() -> None:
    assert len({mark_path(mark, 0.0, 0.0, 6.0) for mark in MARKS}) == len(MARKS)


def test_dashes_grow_with_the_width_of_their_line() -> None:
    parts = [float(part) for part in dash_of(3, 1.0).split()]
    assert [float(part) for part in dash_of(3, 3.0).split()] == pytest.approx(
        [3 * p for p in parts]
    )
    assert dash_of(0, 3.0) == "", "the baseline's is solid"


def test_lengths_are_no_finer_than_a_screen_shows() -> None:
    assert [length(v) for v in (0.0, 1 / 3, -2.50, 100.0)] == ["0", "0.33", "-2.5", "100"]


@pytest.mark.parametrize(("kind", "elements"), [("arm", 2), ("clock", 1), ("line", 1)])
def test_a_sign_of_a_legend_is_sound_and_in_the_colours_asked_for(kind: str, elements: int) -> None:
    for palette in (PLAIN, THEMED):
        source = sign(kind, 1, palette)
        assert len(ET.fromstring(f"<svg>{source}</svg>")) == elements
        colours = {"arm": palette.of(1), "clock": palette.clocks[1], "line": palette.muted}
        assert set(re.findall(r"#\w{6}|var\([^)]*\)", source)) == {colours[kind]}
