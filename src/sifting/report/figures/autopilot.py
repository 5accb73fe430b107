"""What an autopilot measured and decided over training: how much it kept, and what it went by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from sifting.report.decisions import RATIO, Decided, Tried, decision_table, read_decisions
from sifting.report.figures.canvas import Canvas, Drawing, Mark, dashed, new_axes, thousands
from sifting.report.palette import style
from sifting.report.reading import Experiment
from sifting.report.sanitize import clip

if TYPE_CHECKING:
    from matplotlib.axes import Axes

GROUP = "What the autopilot decided"
SHARE, KEPT_LOSS, AGREEMENT, TRIED, KEPT = range(5)  # styles
HIGHEST = 2.0  # agreement that is shown


def drawings(experiment: Experiment) -> Iterator[Drawing]:
    """Two figures for the first run that has decisions: what it went by, and what it did."""
    for entry in experiment.entries:
        decided, tried = read_decisions(entry)
        if not decided:
            continue
        name = f"{clip(entry.curve.arm, 40)}, seed {entry.curve.seed}"
        table = decision_table(name, decided, tried)
        end = max(float(entry.curve.steps[-1]) if len(entry.curve) else 0.0, decided[-1].update)
        yield Drawing(
            "evidence",
            GROUP,
            f"What it went by ({name})",
            "Learning share: of the progress on held-out samples, the part made on the half that would be kept. "
            "μ: the part of the loss that it carries. Agreement: of its gradient with the mean, at most "
            f"{HIGHEST:g} shown. The dashed line is what a random half has of the first two.",
            table,
            (
                Mark("arm", "learning share", SHARE),
                Mark("arm", "μ", KEPT_LOSS),
                Mark("arm", "agreement", AGREEMENT),
                Mark("line", "random half"),
            ),
            partial(_draw_evidence, decided, end),
        )
        marks = [Mark("arm", "ratio; mark: decision", KEPT)]
        if tried:
            marks.append(Mark("arm", "trial; ×: harm", TRIED))
        yield Drawing(
            "ratio",
            GROUP,
            f"What it did ({name})",
            "The ratio: how many candidates were drawn for each sample that was trained; 1 is plain training. "
            "Decisions that changed it are marked, and trials, at the ratio that was tried.",
            table,
            tuple(marks),
            partial(_draw_ratio, decided, tried, end),
        )
        return


def _draw_evidence(decided: Sequence[Decided], end: float, canvas: Canvas) -> Figure:
    figure, axes = new_axes(canvas)
    for index, name in ((SHARE, "share"), (KEPT_LOSS, "kept_loss"), (AGREEMENT, "agreement")):
        points = [(one.update, getattr(one, name)) for one in decided]
        points = [(x, min(y, HIGHEST)) for x, y in points if math.isfinite(y)]
        if points:
            axes.plot(
                *zip(*points, strict=True),
                color=canvas.palette.of(index),
                linestyle=style(index)[0],
                marker=style(index)[1],
                linewidth=1.9,
                markersize=5,
            )
    dashed(axes, 1 / RATIO, canvas)
    low, high = axes.get_ylim()
    axes.set_ylim(min(0.0, max(low, -1.0)), max(high, 1.05))
    axes.set_ylabel("share; agreement")
    _over_updates(axes, end)
    return figure


def _draw_ratio(
    decided: Sequence[Decided], tried: Sequence[Tried], end: float, canvas: Canvas
) -> Figure:
    figure, axes = new_axes(canvas)
    colour = canvas.palette.of(KEPT)
    updates = [0.0, *(one.update for one in decided), end]
    ratios = [1.0, *(one.ratio for one in decided), decided[-1].ratio]
    axes.step(updates, ratios, where="post", color=colour, linewidth=1.9)
    changes = [(one.update, one.ratio) for one in decided if one.changed]
    if changes:
        x, y = zip(*changes, strict=True)
        axes.plot(x, y, color=colour, linestyle="none", marker=style(KEPT)[1], markersize=7)
    for trial in tried:
        colour = canvas.palette.of(TRIED)
        axes.plot(
            trial.update, trial.ratio, color=colour, marker=style(TRIED)[1], markersize=7, zorder=4
        )
        if trial.harms:
            axes.plot(
                trial.update,
                trial.ratio,
                color=canvas.palette.ink,
                marker="x",
                markersize=11,
                zorder=5,
            )
    top = max([2.0, *ratios, *(trial.ratio for trial in tried)])
    axes.set_yscale("log", base=2)
    rungs = [2.0**k for k in range(int(math.log2(top)) + 1)]
    axes.set_yticks(rungs, [f"{rung:g}" for rung in rungs])
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylim(0.85, 1.2 * top)
    axes.set_ylabel("candidates for each trained")
    _over_updates(axes, end)
    return figure


def _over_updates(axes: Axes, end: float) -> None:
    axes.set_xlim(0, 1.02 * end or 1.0)
    axes.set_xlabel("updates")
    axes.xaxis.set_major_formatter(lambda value, _: thousands(value))
