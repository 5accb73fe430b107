"""Pictures of the proving ground: learning curves of a task, and what was predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import hypot, inf

from numpy import array

from sifting.bench import protocol
from sifting.bench.wording import Result, best_of
from sifting.report.figures.canvas import Canvas, Drawing, Mark, arm_marks, capital, heights
from sifting.report.figures.plot import Line, Note, Plot, axis, reach
from sifting.report.tables import Table

EARLY = 0.15  # of the time: what lies before is steep and says little
LEVEL = 0.035  # of the time: a saving below it, and a cost, is none
MANY = 4  # tasks that are not named one by one
# inches: from a point to its name, what a note leaves free before it, half a point, a line of text, a letter
AWAY, GAP, DOT, ROW, LETTER = 0.05, 0.06, 0.045, 0.15, 0.085
NAMES = 0.8  # inches for names beyond the last point
SHIFTS = (
    0.0,
    -0.5,
    0.5,
    -1.0,
    1.0,
    -1.5,
    1.5,
    -2.0,
    2.0,
    -3.0,
    3.0,
    -4.0,
    4.0,
)  # lines of text by which a name may be off
FIRST = 2  # number of the first colour of points: the baseline's is not among them

Point = tuple[str, str, float, float]  # task, arm, predicted and measured saving


def curves(name: str, result: Result) -> bytes:
    """The metric over the baseline's time, of the arms that the table of all names."""
    fixed, paper = best_of(result, protocol.FIXED), best_of(result, protocol.PAPER)
    wanted = (
        protocol.BASELINE,
        protocol.CONTROL,
        protocol.AUTO,
        fixed,
        paper,
        *protocol.LONGER[1:2],
    )
    arms = [
        arm for arm in dict.fromkeys(wanted) if arm and result["curves"].get(arm, {}).get("metric")
    ]
    scale = 100.0 if result["percent"] else 1.0
    whole = result["curves"][protocol.BASELINE]["seconds"][-1]

    def plot(canvas: Canvas) -> Plot:
        lines, early = [], []
        for index, arm in enumerate(arms):
            found = result["curves"][arm]
            shares = [second / whole for second in found["seconds"]]
            values = [scale * value for value in found["metric"]]
            early += [value for share, value in zip(shares, values, strict=True) if share > EARLY]
            lines.append(Line(index, shares, values, size=4))
        low, high = reach(heights(lines))
        if early and result["lower_is_better"]:
            high = max(early)
        elif early:
            low = min(early)
        last = reach([share for line in lines for share in line.x])[1]
        metric = f"{result['metric']} (%)" if result["percent"] else result["metric"]
        target = result["target"]
        return Plot(
            axis("time ÷ the baseline's", (0.0, last), canvas.across()),
            axis(metric, (low, high), canvas.up, side="y", grid=True),
            tuple(lines),
            () if target is None else (scale * target,),
        )

    title = f"{capital(name)}: {result['metric']} over time"
    marks = arm_marks(arms, range(len(arms)))
    return Drawing(name, "", title, "", Table("", [], []), marks, plot).file("svg")


def predicted(points: Sequence[Point]) -> bytes:
    """Predicted against measured saving: a point for each task and arm, beside it the task's name.

    In the shaded quarters a prediction has the wrong sign.

    Args:
        points: task, arm, predicted and measured saving.
    """
    arms = sorted({arm for _, arm, *_ in points}, key=lambda arm: (arm != protocol.AUTO, arm))

    def plot(canvas: Canvas) -> Plot:
        left, right = reach([0.0, *(100 * x for *_, x, _ in points)])
        down, up = reach([0.0, *(100 * y for *_, y in points)])
        right += NAMES / canvas.across() * (right - left)  # for the names of the last points
        low, high = min(left, down), max(right, up)
        lines = [
            Line(0, ends, [mean, mean], array([mean, mean]), every=0, joined="no")
            for ends, mean in (([left, 0.0], up / 2), ([0.0, right], down / 2))
        ]
        lines.append(Line(0, [low, high], [low, high], every=0, tone="muted"))
        lines.append(Line(0, [0.0, 0.0], [down, up], every=0, tone="muted"))
        for index, arm in enumerate(arms, start=FIRST):
            mine = [(100 * x, 100 * y) for _, name, x, y in points if name == arm]
            x, y = zip(*mine, strict=True)
            lines.append(Line(index, x, y, joined="no", size=6))
        inch = (right - left) / canvas.across(), (up - down) / canvas.up
        corner = 0.12 * inch[1]
        notes = [
            Note(left, up - corner, "said no, would have saved", "beside"),
            Note(0.0, down + corner, "said yes, saved nothing", "beside"),
            *(Note(x, y, text, "beside") for x, y, text in names(points, inch=inch, least=left)),
        ]
        return Plot(
            axis("predicted saving (%)", (left, right), canvas.across()),
            axis("measured saving (%)", (down, up), canvas.up, side="y"),
            tuple(lines),
            (0.0,),
            notes=tuple(notes),
        )

    marks = tuple(Mark("point", arm, index) for index, arm in enumerate(arms, start=FIRST))
    return Drawing(
        "predicted", "", "Predicted and measured", "", Table("", [], []), marks, plot
    ).file("svg")


def names(
    points: Sequence[Point], *, inch: tuple[float, float], least: float = -inf
) -> list[tuple[float, float, str]]:
    """Where the tasks' names stand, none over another or over a point, and what is written there.

    >>> found = names([("digits", "auto", 0.0, -0.01), ("gpt", "auto", 0.0, -0.02)], inch=(10, 10))
    >>> [text for *_, text in found]
    ['digits, gpt']

    Points near zero, where nothing is promised and nothing is saved, have one name for all of them
    where these are few, and their number where they are many.

    Args:
        points: as for `predicted`.
        inch: percent in an inch of either axis.
        least: percent from which on there is room for a name.
    """
    level = list(dict.fromkeys(task for task, _, x, y in points if max(abs(x), abs(y)) < LEVEL))
    named = [(100 * x, 100 * y, task) for task, _, x, y in points if max(abs(x), abs(y)) >= LEVEL]
    if level:
        many = f"{len(level)} tasks: says no, trains it all"
        named.append((0.0, 0.0, ", ".join(level) if len(level) < MANY else many))
    places = [(x / inch[0], y / inch[1], text) for x, y, text in named]
    dots = [(100 * x / inch[0], 100 * y / inch[1]) for *_, x, y in points]
    taken = [(x - DOT, y - DOT, x + DOT, y + DOT) for x, y in dots]
    found: list[tuple[float, float, str]] = []
    for x, y, text in sorted(places, key=lambda place: -place[1]):
        if any(text == then and hypot(x - left, y - up) < 2 * ROW for left, up, then in found):
            continue  # named beside another of its points
        wide = LETTER * len(text)
        tries = [
            (start, y + shift * ROW)
            for shift in SHIFTS
            for start in (x + AWAY, x - AWAY - GAP - wide)
        ]
        tries = [place for place in tries if place[0] * inch[0] >= least]
        boxes = [(left, up - ROW / 2, left + wide, up + ROW / 2) for left, up in tries]
        free = [n for n, box in enumerate(boxes) if not any(_meet(box, one) for one in taken)]
        best = free[0] if free else 0
        taken.append(boxes[best])
        found.append((*tries[best], text))
    return [(x * inch[0], y * inch[1], text) for x, y, text in found]


def _meet(one: Sequence[float], other: Sequence[float]) -> bool:
    """Whether two boxes overlap."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def pairs(results: Mapping[str, Result]) -> list[Point]:
    """Task, arm, predicted and measured saving of what was both advised on and run.

    Args:
        results: by task.
    """
    found = []
    for task, result in results.items():
        advice = result.get("advice") or {"arms": {}}
        for arm, said in sorted(advice["arms"].items()):
            measured = measured_saving(result, arm)
            if measured is not None:
                found.append((task, arm, float(said["saving"]), measured))
    return found


def measured_saving(result: Result, arm: str) -> float | None:
    """1 less the time to where the baseline ends.

    An arm that does not get there has what it is worth by baselines of other lengths.
    """
    known = result["arms"].get(arm, {}).get("time_ratio") or result["worth"].get(arm)
    return None if known is None else 1 - float(known["value"])
