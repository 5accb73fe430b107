"""Matplotlib's figures as files, and as elements of a page."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import matplotlib as mpl
from matplotlib.figure import Figure

from sifting.report.palette import THEMED
from sifting.report.svg import drawing_style, inline, saved

NAME = '$x$ <b> #010101 id="y" url(#z)'


def figure() -> Figure:
    made = Figure(figsize=(3, 2))
    axes = made.add_subplot()
    axes.plot([0, 1], [0, 1], color=THEMED.series[1], label=NAME)
    axes.legend()
    return made


def element(prefix: str = "p") -> str:
    with drawing_style():
        source = saved(figure(), "svg").decode()
    return inline(source, prefix=prefix, title="A & B", about="what <it> shows")


def test_the_same_figure_gives_the_same_bytes_whatever_the_user_has_set() -> None:
    with drawing_style():
        first = saved(figure(), "svg")
    with mpl.rc_context({"font.size": 30, "svg.fonttype": "path"}), drawing_style():
        again = saved(figure(), "svg")
    assert first == again


def test_names_stay_text_and_are_left_as_they_are() -> None:
    root = ET.fromstring(element())
    texts = {e.text for e in root.iter("{http://www.w3.org/2000/svg}text")}
    assert NAME in texts, "neither a formula nor a colour nor an id of ours"


def test_it_takes_the_pages_colours_and_ids_of_its_own() -> None:
    first, second = element("one"), element("two")
    assert "var(--s1)" in first
    assert THEMED.series[1] not in first
    roots = [ET.fromstring(source) for source in (first, second)]
    ids = [{e.get("id") for e in root.iter() if e.get("id")} for root in roots]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_it_is_named_for_those_who_do_not_see_it() -> None:
    root = ET.fromstring(element())
    space = "{http://www.w3.org/2000/svg}"
    assert (root.get("role"), root.get("aria-labelledby")) == ("img", "p-title p-desc")
    assert root.findtext(f"{space}title") == "A & B"
    assert root.findtext(f"{space}desc") == "what <it> shows"
    assert "<metadata>" not in element()


def test_a_file_of_pixels_is_a_png() -> None:
    with drawing_style():
        assert saved(figure(), "png").startswith(b"\x89PNG")
