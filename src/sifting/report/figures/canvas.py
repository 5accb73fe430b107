"""What every figure is drawn on, and what its legend lists."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from sifting.report.bands import Band, thinned
from sifting.report.palette import PLAIN, THEMED, Palette, style
from sifting.report.sanitize import clip
from sifting.report.svg import drawing_style, inline, saved
from sifting.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

MOST_ARMS = 24  # in one figure; colours and dashes repeat long before
POINTS = 1200  # columns of pixels that the arms of a figure share


@dataclass(frozen=True)
class Canvas:
    """Where a figure goes: its colours, its size in inches, and whether it has a legend inside."""

    palette: Palette
    width: float
    height: float
    legend: bool = False


# letters are 12 points: at the width at which a page shows each, they are as large as its text
WIDE = Canvas(THEMED, 5.5, 3.8)
NARROW = Canvas(THEMED, 3.35, 3.0)
FILE = Canvas(PLAIN, 5.5, 3.8, legend=True)


@dataclass(frozen=True)
class Mark:
    """An entry of a legend: an arm's line, a clock's colour, or a dashed line."""

    kind: Literal["arm", "clock", "line"]
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
        draw: draws it, the legend aside.
    """

    key: str
    group: str
    title: str
    about: str
    table: Table
    marks: tuple[Mark, ...]
    draw: Callable[[Canvas], Figure]

    def svg(self, prefix: str, canvas: Canvas = WIDE) -> str:
        """The figure as an element of a page, in the page's own colours and font.

        Args:
            prefix: a word that no other figure of the page has.
            canvas: `WIDE`, or `NARROW` for a phone.
        """
        with drawing_style():
            source = saved(self.draw(canvas), "svg").decode("utf-8")
        return inline(source, prefix=prefix, title=self.title, about=self.about)

    def file(self, kind: str) -> bytes:
        """The figure as the content of a file of its own, with a legend.

        Args:
            kind: "png" or "svg".
        """
        with drawing_style():
            figure = self.draw(FILE)
            handles = [_handle(mark) for mark in self.marks]
            labels = [mark.label for mark in self.marks]
            if handles:
                figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
                figure.set_figheight(figure.get_figheight() + 0.28 * ((len(handles) + 1) // 2))
            return saved(figure, kind)


def _handle(mark: Mark) -> Artist:
    if mark.kind == "clock":
        return Patch(facecolor=PLAIN.clocks[mark.index])
    if mark.kind == "line":
        return Line2D([], [], color=PLAIN.muted, linestyle=(0, (4, 3)), linewidth=1.1)
    dash, shape = style(mark.index)
    return Line2D([], [], color=PLAIN.of(mark.index), linestyle=dash, marker=shape)


def capital(name: str) -> str:
    """A name at the beginning of a heading."""
    return name[:1].upper() + name[1:]


def arm_marks(arms: Sequence[str], drawn: Sequence[int]) -> tuple[Mark, ...]:
    """The legend of the arms that were drawn."""
    return tuple(Mark("arm", clip(arms[i], 48), i) for i in drawn)


def new_axes(canvas: Canvas) -> tuple[Figure, Axes]:
    """An empty figure with axes in the colours of the canvas."""
    palette = canvas.palette
    # on a page, margins that hold any label: to measure them takes as long as to draw
    figure = Figure(
        figsize=(canvas.width, canvas.height), layout="constrained" if canvas.legend else None
    )
    figure.patch.set_facecolor("none" if palette is THEMED else palette.paper)
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    for side in ("left", "bottom"):
        axes.spines[side].set_color(palette.muted)
    axes.tick_params(colors=palette.muted, labelcolor=palette.muted)
    axes.xaxis.label.set_color(palette.ink)
    axes.yaxis.label.set_color(palette.ink)
    axes.grid(True, axis="y", color=palette.rule, linewidth=0.8)
    axes.set_axisbelow(True)
    if canvas.width < FILE.width:
        axes.locator_params(nbins=5)
    if not canvas.legend:
        set_margins(figure, left=0.78)
    return figure, axes


def set_margins(figure: Figure, *, left: float) -> None:
    """Margins in inches, whatever the size of the figure, and what the axes are called inside them."""
    width, height = figure.get_size_inches()
    right, bottom, top = 0.12, 0.56, 0.12
    figure.subplots_adjust(
        left=left / width, right=1 - right / width, bottom=bottom / height, top=1 - top / height
    )
    (axes,) = figure.axes
    axes.xaxis.set_label_coords(0.5, -0.3 / (height - bottom - top))
    axes.yaxis.set_label_coords((0.24 - left) / (width - left - right), 0.5)


def plot_band(
    axes: Axes, index: int, band: Band, canvas: Canvas, *, arms: int, scale: float = 1.0
) -> None:
    """Draw an arm's mean, and its spread where it has several seeds.

    Args:
        index: number of the arm, which has its colour, dash and mark.
        arms: how many there are, to share the points that a figure may have.
        scale: what the figures are multiplied by.
    """
    band = thinned(band, max(40, min(200, POINTS // max(1, arms))))
    colour = canvas.palette.of(index)
    x, mean, std = band.x, scale * band.mean, scale * band.std
    if band.seeds > 1:
        axes.fill_between(x, mean - std, mean + std, color=colour, alpha=0.16, linewidth=0)
    axes.plot(
        x,
        mean,
        color=colour,
        linestyle=style(index)[0],
        linewidth=1.9,
        marker=style(index)[1],
        markersize=5,
        markevery=max(1, len(x) // 6) if len(x) > 1 else None,
    )


def dashed(axes: Axes, height: float, canvas: Canvas) -> None:
    """A horizontal line to compare with."""
    colour = canvas.palette.muted
    axes.axhline(height, color=colour, linewidth=1.1, linestyle=(0, (4, 3)), zorder=1)


def thousands(value: float) -> str:
    """A large number for the tick of an axis.

    >>> thousands(64000.0), thousands(12.0)
    ('64k', '12')
    """
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"
