"""A figure with all that stands beside it, the sizes it is drawn in, and what its legend lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from sifting.report import svg
from sifting.report.bands import Band, thinned
from sifting.report.figures.plot import Line, Plot
from sifting.report.marks import sign
from sifting.report.palette import PLAIN, THEMED, Palette
from sifting.report.sanitize import clip
from sifting.report.tables import Table

MOST_ARMS = 24  # in one figure; colours and dashes repeat long before
POINTS = 1200  # columns of pixels that the arms of a figure share


@dataclass(frozen=True)
class Canvas:
    """Where a figure goes: its colours, and its size in inches."""

    palette: Palette
    width: float
    height: float

    @property
    def size(self) -> tuple[float, float]:
        return self.width, self.height

    def across(self, left: float = 0.78) -> float:
        """Inches along the x axis."""
        return self.width - left - svg.RIGHT

    @property
    def up(self) -> float:
        """Inches along the y axis."""
        return self.height - svg.TOP - svg.BOTTOM


# letters are 12 points: at the width at which a page shows each, they are as large as its text
WIDE = Canvas(THEMED, 5.5, 3.8)
NARROW = Canvas(THEMED, 3.35, 3.0)
FILE = Canvas(PLAIN, 5.5, 3.8)


@dataclass(frozen=True)
class Mark:
    """An entry of a legend: an arm's line, its mark alone, a clock's colour, or a dashed line."""

    kind: Literal["arm", "point", "clock", "line"]
    label: str
    index: int = 0


@dataclass(frozen=True)
class Drawing:
    """A figure and what stands beside it.

    Attributes:
        key: short name, for files and anchors.
        group: heading under which a page shows it with others.
        title: its own heading.
        about: what it shows, for those who do not see it too.
        table: its data.
        marks: its legend: what is in it, and nothing else.
        plot: what is drawn on a canvas.
    """

    key: str
    group: str
    title: str
    about: str
    table: Table
    marks: tuple[Mark, ...]
    plot: Callable[[Canvas], Plot]

    def svg(self, prefix: str, canvas: Canvas = WIDE) -> str:
        """The figure as an element of a page, in the page's own colours and font.

        Args:
            prefix: a word that no other figure of the page has.
            canvas: `WIDE`, or `NARROW` for a phone.
        """
        return svg.inline(
            self.plot(canvas),
            canvas.palette,
            canvas.size,
            prefix=prefix,
            title=self.title,
            about=self.about,
        )

    def file(self, kind: str) -> bytes:
        """The figure as the content of a file of its own, with a legend.

        Args:
            kind: "png" or "svg".
        """
        plot = self.plot(FILE)
        if kind == "svg":
            legend = [(sign(mark.kind, mark.index, PLAIN), mark.label) for mark in self.marks]
            return svg.whole_file(plot, PLAIN, FILE.size, legend).encode("utf-8")
        from sifting.report.paper import png  # Matplotlib, which pages do without

        return png(plot, PLAIN, FILE.size, [(m.kind, m.index, m.label) for m in self.marks])


def capital(name: str) -> str:
    """A name at the beginning of a heading."""
    return name[:1].upper() + name[1:]


def arm_marks(arms: Sequence[str], drawn: Sequence[int]) -> tuple[Mark, ...]:
    """The legend of the arms that were drawn."""
    return tuple(Mark("arm", clip(arms[i], 48), i) for i in drawn)


def band_line(index: int, band: Band, *, arms: int, scale: float = 1.0) -> Line:
    """An arm's mean, and its spread where it has several seeds.

    Args:
        index: number of the arm, which has its colour, dash and mark.
        band: of any length.
        arms: how many there are, to share the points that a figure may have.
        scale: what the figures are multiplied by.
    """
    band = thinned(band, max(40, min(200, POINTS // max(1, arms))))
    count = len(band.x)
    return Line(
        index,
        band.x,
        scale * band.mean,
        spread=scale * band.std if band.seeds > 1 else None,
        every=max(1, count // 6),
    )


def heights(lines: Sequence[Line]) -> list[float]:
    """Lowest and highest of what some lines show, their bands too."""
    found: list[float] = []
    for line in lines:
        for number, y in enumerate(line.y):
            spread = 0.0 if line.spread is None else float(line.spread[number])
            found += [float(y) - spread, float(y) + spread]
    return found


def thousands(value: float) -> str:
    """A large number for the tick of an axis.

    >>> thousands(64000.0), thousands(12.0)
    ('64k', '12')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
