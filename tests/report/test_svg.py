"""Figures as SVG: elements of a page, and files of their own."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest

from sifting.report import svg
from sifting.report.figures.canvas import NARROW, WIDE, Canvas
from sifting.report.figures.plot import Axis, Line, Plot
from sifting.report.palette import PLAIN
from tests.helpers.plots import NAME, drawing

NAMESPACE = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("canvas", [WIDE, NARROW])
def test_a_figure_is_one_sound_element_in_the_colours_of_the_page(canvas: Canvas) -> None:
    source = drawing().svg("e0-all", canvas)
    root = ET.fromstring(source)
    assert {e.tag.removeprefix(NAMESPACE) for e in root.iter()} == {
        *("svg", "title", "desc", "defs", "clipPath", "rect", "pattern", "g", "path", "text")
    }
    assert not [name for e in root.iter() for name in e.attrib if name.startswith("on")]
    ids = [e.attrib["id"] for e in root.iter() if "id" in e.attrib]
    assert len(set(ids)) == len(ids)
    assert all(name.startswith("e0-all-") for name in ids)
    assert "var(--s2)" in source
    assert not re.search("#[0-9a-f]{6}", source), "no colour of its own"
    assert "\x1b" not in source
    width, height = map(float, root.attrib["viewBox"].split()[2:])
    assert (width, height) == pytest.approx((72 * canvas.width, 72 * canvas.height))
    numbers = re.findall(r"-?\d+\.?\d*", " ".join(e.attrib.get("d", "") for e in root.iter()))
    assert max(abs(float(n)) for n in numbers) < 1e5


def test_points_are_where_the_axes_say() -> None:
    plot = Plot(
        Axis("", 0.0, 10.0), Axis("", 0.0, 4.0), (Line(0, [0.0, 5.0, 10.0], [0.0, 4.0, 2.0]),)
    )
    frame = svg.Frame.of(plot, 5.0, 3.0)
    assert (frame.x(0.0), frame.x(10.0)) == pytest.approx((0.78 * 72, (5 - svg.RIGHT) * 72))
    assert (frame.y(0.0), frame.y(4.0)) == pytest.approx(((3 - svg.BOTTOM) * 72, svg.TOP * 72))
    middle = (frame.x(0.0) + frame.x(10.0)) / 2
    assert f"L{middle:.2f}".rstrip("0").rstrip(".") in svg.inline(
        plot, PLAIN, (5.0, 3.0), prefix="p", title="", about=""
    )


def test_a_file_of_its_own_has_its_legend_and_plain_colours() -> None:
    source = drawing().file("svg").decode()
    root = ET.fromstring(source)
    words = [e.text for e in root.iter(f"{NAMESPACE}text")]
    assert {"target", "data", "up", "5 s"} <= set(words)
    assert "var(" not in source
    assert "currentColor" not in source


def test_it_is_named_for_those_who_do_not_see_it() -> None:
    plot = Plot(Axis("", 0.0, 1.0), Axis("", 0.0, 1.0))
    source = svg.inline(plot, PLAIN, (5.0, 3.0), prefix="p", title="A & B", about="what <it> shows")
    root = ET.fromstring(source)
    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "p-title p-desc")
    assert root.findtext(f"{NAMESPACE}title") == "A & B"
    assert root.findtext(f"{NAMESPACE}desc") == "what <it> shows"


def test_names_stay_text_and_are_left_as_they_are() -> None:
    root = ET.fromstring(drawing(NAME).file("svg"))
    assert NAME in {e.text for e in root.iter(f"{NAMESPACE}text")}, (
        "no formula, colour or id of ours"
    )
