from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET

import numpy as np
import pytest
from PIL import Image

from sifting.report import svg
from sifting.report.figures.canvas import FILE, NARROW, WIDE, Canvas, Drawing, Mark
from sifting.report.figures.plot import Axis, Bar, Line, Note, Plot, axis
from sifting.report.marks import OUTLINES, mark_path
from sifting.report.palette import MARKS, PLAIN, THEMED
from sifting.report.tables import Table

NAMESPACE = "{http://www.w3.org/2000/svg}"
HOSTILE = '</text><script>alert(1)</script>\x1b\u202e"onload="x'


def everything(canvas: Canvas) -> Plot:
    x = np.linspace(0.0, 10.0, 7)
    return Plot(
        axis(HOSTILE, (0.0, 10.0), canvas.across(), grid=True),
        Axis("up", 1.0, 8.0, ((1.0, "1"), (2.0, "2"), (8.0, "8")), grid=True, log=True),
        lines=(
            Line(0, x, 1 + x / 2, spread=np.full(7, 0.5), every=2),
            Line(2, [0.0, 4.0, 9.0], [1.0, 4.0, 2.0], joined="steps", every=0),
            *(Line(i, [float(i)], [3.0], joined="no") for i in range(len(MARKS))),
            Line(1, [3.0], [2.0], joined="no", tone="ink", mark="x", size=11),
        ),
        rules=(2.0,),
        bars=(Bar(1, 0.0, 3.0, 0), Bar(1, 3.0, 2.0, 6)),
        notes=(Note(0.0, 2.0, HOSTILE), Note(5.0, 2.0, "5 s", "beside")),
    )


def drawing() -> Drawing:
    marks = (Mark("arm", HOSTILE, 1), Mark("clock", "data", 0), Mark("line", "target"))
    return Drawing("all", "Group", "Title", HOSTILE, Table("", [], []), marks, everything)


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
    with Image.open(io.BytesIO(drawing().file("png"))) as image:
        assert image.size[0] == pytest.approx(200 * FILE.width, abs=2)
        drawn = np.asarray(image.convert("RGB")).reshape(-1, 3)
        assert len(np.unique(drawn, axis=0)) > 20


@pytest.mark.parametrize("mark", MARKS)
def test_every_mark_is_around_its_middle(mark: str) -> None:
    path = mark_path(mark, 100.0, 50.0, 6.0)
    assert path.startswith("M")
    for x, y in OUTLINES.get(mark, ()):
        assert abs(x) <= 0.7
        assert abs(y) <= 0.7
    assert THEMED.of(0) == "var(--s0)"
