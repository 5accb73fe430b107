"""Figures as PNG files, by Matplotlib."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from matplotlib import style as styles
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import NullLocator

from sifting.report import svg
from sifting.report.figures.plot import Line, Plot
from sifting.report.palette import Palette, style

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

DOTS = 200  # an inch
RULE = (0, (4, 3))


def png(
    plot: Plot,
    palette: Palette,
    size: tuple[float, float],
    legend: Sequence[tuple[str, int, str]],
) -> bytes:
    """A figure as the content of a file, its legend under it.

    Args:
        plot: what is drawn.
        palette: its colours.
        size: width and height of its canvas in inches.
        legend: kind, index and name of each entry.
    """
    width, height = size[0], plot.height or size[1]
    below = 0.28 * ((len(legend) + 1) // 2)
    with _own_style():
        figure = Figure(figsize=(width, height + below), facecolor=palette.paper)
        whole = height + below
        axes = figure.add_axes(
            (
                plot.left / width,
                (svg.BOTTOM + below) / whole,
                (width - plot.left - svg.RIGHT) / width,
                (height - svg.BOTTOM - svg.TOP) / whole,
            )
        )
        _sides(axes, plot, palette)
        _content(axes, plot, palette)
        if legend:
            handles = [_handle(kind, index, palette) for kind, index, _ in legend]
            figure.legend(
                handles, [name for *_, name in legend], loc="lower center", ncols=2, frameon=False
            )
        buffer = io.BytesIO()
        figure.set_dpi(DOTS)
        canvas: Any = FigureCanvasAgg(figure)  # whose methods have no types
        canvas.print_png(buffer)  # drawn once; `savefig` would look twice
    return buffer.getvalue()


@contextmanager
def _own_style() -> Iterator[None]:
    """Settings of our own, whatever the user has set for plots of their own."""
    mine: dict[str, Any] = {
        "font.size": 12,
        "text.parse_math": False,  # names from runs are text, not formulas
        "axes.spines.top": False,
        "axes.spines.right": False,
        "hatch.linewidth": 0.6,
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing")  # a name in any script
        with styles.context(["default", mine]):
            yield


def _sides(axes: Axes, plot: Plot, palette: Palette) -> None:
    axes.set_facecolor("none")
    axes.set_axisbelow(True)
    for name, axis in (("x", plot.x), ("y", plot.y)):
        shown: Any = getattr(axes, f"{name}axis")
        if axis.log:
            getattr(axes, f"set_{name}scale")("log", base=2)
        getattr(axes, f"set_{name}lim")(axis.low, axis.high)
        shown.set_ticks([value for value, _ in axis.ticks], [text for _, text in axis.ticks])
        shown.set_minor_locator(NullLocator())
        shown.set_label_text(axis.label, color=palette.ink)
        if axis.grid:
            axes.grid(True, axis=name, color=palette.rule, linewidth=0.8)  # type: ignore[arg-type]
    axes.tick_params(colors=palette.muted, labelcolor=palette.muted)
    for side, axis in (("bottom", plot.x), ("left", plot.y)):
        axes.spines[side].set_color(palette.muted)
        axes.spines[side].set_visible(axis.line)


def _content(axes: Axes, plot: Plot, palette: Palette) -> None:
    last = len(palette.clocks) - 1
    for bar in plot.bars:
        axes.barh(
            bar.row,
            bar.length,
            left=bar.left,
            height=0.4,
            color=palette.clocks[bar.clock],
            edgecolor=palette.paper,
            linewidth=0.8,
            hatch="////" if bar.clock == last else None,
        )
    for height in plot.rules:
        axes.axhline(height, color=palette.muted, linewidth=1.1, linestyle=RULE, zorder=1)
    for line in plot.lines:
        _line(axes, line, palette)
    for note in plot.notes:
        over = note.where == "over"
        axes.annotate(
            note.text,
            (note.x, note.y),
            xytext=(0, 5) if over else (4, 0),
            textcoords="offset points",
            color=palette.ink if over else palette.muted,
            va="bottom" if over else "center",
            fontsize=svg.LETTERS if over else svg.SMALL,
        )


def _line(axes: Axes, line: Line, palette: Palette) -> None:
    arm = line.tone == "arm"
    colour = {"ink": palette.ink, "muted": palette.muted}.get(line.tone, palette.of(line.style))
    dash, mark = style(line.style)
    if line.spread is not None:
        low, high = line.y - line.spread, line.y + line.spread
        axes.fill_between(line.x, low, high, color=colour, alpha=0.16, linewidth=0)
    axes.plot(
        line.x,
        line.y,
        color=colour,
        linestyle="none" if line.joined == "no" else dash if line.dashed else "solid",
        linewidth=1.9 if arm else 0.8,
        drawstyle="steps-post" if line.joined == "steps" else "default",
        marker=(line.mark or mark) if line.every else "",
        markersize=line.size,
        markevery=line.every or None,
    )


def _handle(kind: str, index: int, palette: Palette) -> Artist:
    if kind == "clock":
        return Patch(facecolor=palette.clocks[index])
    if kind == "line":
        return Line2D([], [], color=palette.muted, linestyle=RULE, linewidth=1.1)
    dash, shape = style(index)
    return Line2D([], [], color=palette.of(index), linestyle=dash, marker=shape)
