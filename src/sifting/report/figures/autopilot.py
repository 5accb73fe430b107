"""What an autopilot measured and decided over training: how much it kept, and what it went by."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial

from sifting.report.decisions import RATIO, Decided, Tried, decision_table, read_decisions
from sifting.report.figures.canvas import Canvas, Drawing, Mark, heights, thousands
from sifting.report.figures.plot import Axis, Line, Plot, axis, reach
from sifting.report.reading import Experiment
from sifting.report.sanitize import clip

GROUP = "What the autopilot decided"
SHARE, KEPT_LOSS, AGREEMENT, TRIED, KEPT = range(5)  # styles
HIGHEST = 2.0  # agreement that is shown


def drawings(experiment: Experiment) -> Iterator[Drawing]:
    """Two figures for a run that has decisions, the first that selected: what it went by, and what it did."""
    known = [(entry, *read_decisions(entry)) for entry in experiment.entries]
    known = [one for one in known if one[1]]
    # of runs that trained everything, as some seeds may, there is less to be seen
    known.sort(key=lambda one: not any(decision.changed for decision in one[1]))
    for entry, decided, tried in known:
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
            partial(_evidence, decided, end),
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
            partial(_ratio, decided, tried, end),
        )
        return


def _evidence(decided: Sequence[Decided], end: float, canvas: Canvas) -> Plot:
    lines = []
    for index, name in ((SHARE, "share"), (KEPT_LOSS, "kept_loss"), (AGREEMENT, "agreement")):
        points = [(one.update, getattr(one, name)) for one in decided]
        points = [(x, min(y, HIGHEST)) for x, y in points if math.isfinite(y)]
        if points:
            x, y = zip(*points, strict=True)
            lines.append(Line(index, x, y))
    low, high = reach([1 / RATIO, *heights(lines)])
    ends = min(0.0, max(low, -1.0)), max(high, 1.05)
    return Plot(
        _updates(end, canvas),
        axis("share; agreement", ends, canvas.up, side="y", grid=True),
        tuple(lines),
        (1 / RATIO,),
    )


def _ratio(decided: Sequence[Decided], tried: Sequence[Tried], end: float, canvas: Canvas) -> Plot:
    updates = [0.0, *(one.update for one in decided), end]
    ratios = [1.0, *(one.ratio for one in decided), decided[-1].ratio]
    lines = [Line(KEPT, updates, ratios, every=0, joined="steps")]
    changes = [(one.update, one.ratio) for one in decided if one.changed]
    if changes:
        x, y = zip(*changes, strict=True)
        lines.append(Line(KEPT, x, y, joined="no", size=7))
    for trial in tried:
        lines.append(Line(TRIED, [trial.update], [trial.ratio], joined="no", size=7))
        if trial.harms:
            at = [trial.update], [trial.ratio]
            lines.append(Line(TRIED, *at, joined="no", size=11, tone="ink", mark="x"))
    top = max([2.0, *ratios, *(trial.ratio for trial in tried)])
    rungs = [2.0**k for k in range(int(math.log2(top)) + 1)]
    named = tuple((rung, f"{rung:g}") for rung in rungs)
    label = "candidates for each trained"
    return Plot(
        _updates(end, canvas),
        Axis(label, 0.85, 1.2 * top, named, grid=True, log=True),
        tuple(lines),
    )


def _updates(end: float, canvas: Canvas) -> Axis:
    return axis("updates", (0.0, 1.02 * end or 1.0), canvas.across(), write=thousands)
