"""Figures as PNG files."""

from __future__ import annotations

import io

import matplotlib as mpl
import numpy as np
import pytest
from PIL import Image

from sifting.report.figures.canvas import FILE
from sifting.report.palette import LIGHT, PLAIN
from sifting.report.paper import DOTS, png
from tests.helpers.plots import HOSTILE, NAME, everything


def drawn(name: str, legend: tuple[tuple[str, int, str], ...] = ()) -> Image.Image:
    source = png(everything(name, FILE), PLAIN, FILE.size, legend)
    return Image.open(io.BytesIO(source)).convert("RGB")


def test_everything_is_drawn_in_the_colours_of_the_arms() -> None:
    image = drawn(HOSTILE, (("arm", 1, HOSTILE), ("clock", 0, "data"), ("line", 0, "target")))
    assert image.size[0] == pytest.approx(DOTS * FILE.width, abs=2)
    colours = np.unique(np.asarray(image).reshape(-1, 3), axis=0)
    assert len(colours) > 20
    wanted = {tuple(int(c[i : i + 2], 16) for i in (1, 3, 5)) for c in (LIGHT[0], LIGHT[2])}
    assert wanted <= {tuple(map(int, colour)) for colour in colours}


def test_a_legend_takes_room_of_its_own() -> None:
    without, entries = drawn(NAME), tuple(("arm", i, f"arm {i}") for i in range(4))
    assert drawn(NAME, entries).size[1] - without.size[1] == pytest.approx(2 * 0.28 * DOTS, abs=2)


def test_the_same_figure_gives_the_same_bytes_whatever_the_user_has_set() -> None:
    plot = everything(NAME, FILE)
    first = png(plot, PLAIN, FILE.size, ())
    with mpl.rc_context({"font.size": 30, "axes.spines.top": True}):
        assert png(plot, PLAIN, FILE.size, ()) == first
