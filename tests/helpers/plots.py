"""A figure with everything in it."""

from __future__ import annotations

from functools import partial

import numpy as np

from sifting.report.figures.canvas import Canvas, Drawing, Mark
from sifting.report.figures.plot import Axis, Bar, Line, Note, Plot, axis
from sifting.report.palette import MARKS
from sifting.report.tables import Table

HOSTILE = '</text><script>alert(1)</script>\x1b\u202e"onload="x'
NAME = '$x$ <b> #010101 id="y" url(#z)'  # neither a formula, nor a colour, nor an id


def everything(name: str, canvas: Canvas) -> Plot:
    """One of everything that a plot may hold."""
    x = np.linspace(0.0, 10.0, 7)
    return Plot(
        axis(name, (0.0, 10.0), canvas.across(), grid=True),
        Axis("up", 1.0, 8.0, ((1.0, "1"), (2.0, "2"), (8.0, "8")), grid=True, log=True),
        lines=(
            Line(0, x, 1 + x / 2, spread=np.full(7, 0.5), every=2),
            Line(2, [0.0, 4.0, 9.0], [1.0, 4.0, 2.0], joined="steps", every=0),
            *(Line(i, [float(i)], [3.0], joined="no") for i in range(len(MARKS))),
            Line(1, [3.0], [2.0], joined="no", tone="ink", mark="x", size=11),
        ),
        rules=(2.0,),
        bars=(Bar(1, 0.0, 3.0, 0), Bar(1, 3.0, 2.0, 6)),
        notes=(Note(0.0, 2.0, name), Note(5.0, 2.0, "5 s", "beside")),
    )


def drawing(name: str = HOSTILE) -> Drawing:
    """A figure with it, whose names are all the same."""
    marks = (Mark("arm", name, 1), Mark("clock", "data", 0), Mark("line", "target"))
    return Drawing(
        *("all", "Group", "Title", name), Table("", [], []), marks, partial(everything, name)
    )
