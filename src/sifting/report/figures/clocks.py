"""Where the time goes: seconds of a run by clock, one bar for each arm."""

from __future__ import annotations

from collections.abc import Iterator

from matplotlib.figure import Figure

from sifting.report.figures.canvas import MOST_ARMS, Canvas, Drawing, Mark, new_axes, set_margins
from sifting.report.palette import CLOCKS
from sifting.report.reading import Experiment
from sifting.report.sanitize import clip
from sifting.report.tables import clock_table, clocks, number

GROUP = "Cost"


def drawings(experiment: Experiment) -> Iterator[Drawing]:
    """One figure, whatever the runs have."""
    axis = experiment.verdict.axis
    arms = list(experiment.arms.items())[:MOST_ARMS]
    spent = {arm: clocks(entries, axis) for arm, entries in arms}
    used = [i for i, clock in enumerate(CLOCKS) if any(of[clock] for of in spent.values())]
    yield Drawing(
        "clocks",
        GROUP,
        "Where the time goes",
        "Seconds of a run by what they were spent on, one bar for each arm, means over seeds"
        + (", reference time." if axis == "reference" else "."),
        clock_table(experiment),
        tuple(Mark("clock", CLOCKS[i], i) for i in used),
        lambda canvas: _draw(spent, canvas),
    )


def _draw(spent: dict[str, dict[str, float]], canvas: Canvas) -> Figure:
    figure, axes = new_axes(canvas)
    palette = canvas.palette
    figure.set_figheight(max(2.2, 0.9 + 0.66 * len(spent)))
    if not canvas.legend:
        set_margins(figure, left=0.12)
    longest = max((sum(of.values()) for of in spent.values()), default=0.0) or 1.0
    for row, (arm, of) in enumerate(spent.items()):
        left = 0.0
        for index, clock in enumerate(CLOCKS):
            if not of[clock]:
                continue
            axes.barh(
                row,
                of[clock],
                left=left,
                height=0.4,
                color=palette.clocks[index],
                edgecolor=palette.paper,
                linewidth=0.8,
                hatch="////" if clock == "evaluation" else None,
            )
            left += of[clock]
        room = 26 if canvas.width < 4 else 44
        axes.text(0, row - 0.26, clip(arm, room), color=palette.ink, va="bottom")
        total = f"{number(left, 3)} s"
        axes.text(left + longest * 0.012, row, total, color=palette.muted, va="center", fontsize=11)
    axes.set_ylim(len(spent) - 0.6, -0.76)
    axes.set_xlim(0, (1.3 if canvas.width < 4 else 1.18) * longest)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x", color=palette.rule, linewidth=0.8)
    axes.set_xlabel("seconds")
    return figure
