"""Where the time goes: seconds of a run by clock, one bar for each arm."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from sifting.report.figures.canvas import MOST_ARMS, Canvas, Drawing, Mark
from sifting.report.figures.plot import Axis, Bar, Note, Plot, axis
from sifting.report.palette import CLOCKS
from sifting.report.reading import Experiment
from sifting.report.sanitize import clip
from sifting.report.tables import clock_table, clocks, number

GROUP = "Cost"
LEFT = 0.12  # inches: names stand over the bars


def drawings(experiment: Experiment) -> Iterator[Drawing]:
    """One figure, whatever the runs have."""
    by = experiment.verdict.axis
    arms = list(experiment.arms.items())[:MOST_ARMS]
    spent = {arm: clocks(entries, by) for arm, entries in arms}
    used = [i for i, clock in enumerate(CLOCKS) if any(of[clock] for of in spent.values())]
    yield Drawing(
        "clocks",
        GROUP,
        "Where the time goes",
        "Seconds of a run by what they were spent on, one bar for each arm, means over seeds"
        + (", reference time." if by == "reference" else "."),
        clock_table(experiment),
        tuple(Mark("clock", CLOCKS[i], i) for i in used),
        partial(_plot, spent),
    )


def _plot(spent: dict[str, dict[str, float]], canvas: Canvas) -> Plot:
    small = canvas.width < 4
    longest = max((sum(of.values()) for of in spent.values()), default=0.0) or 1.0
    bars, notes = [], []
    for row, (arm, of) in enumerate(spent.items()):
        left = 0.0
        for index, clock in enumerate(CLOCKS):
            if of[clock]:
                bars.append(Bar(row, left, of[clock], index))
                left += of[clock]
        notes.append(Note(0.0, row - 0.2, clip(arm, 26 if small else 44)))
        notes.append(Note(left, row, f"{number(left, 3)} s", "beside"))
    ends = (0.0, (1.3 if small else 1.18) * longest)
    return Plot(
        axis("seconds", ends, canvas.across(LEFT), grid=True),
        Axis("", len(spent) - 0.6, -0.76, line=False),
        bars=tuple(bars),
        notes=tuple(notes),
        height=max(2.2, 0.9 + 0.66 * len(spent)),
        left=LEFT,
    )
