"""Pictures of the proving ground: learning curves of a task, and what was predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sifting.bench import protocol
from sifting.bench.wording import Result, best_of
from sifting.report.figures.canvas import Canvas, Drawing, arm_marks, capital, heights
from sifting.report.figures.plot import Line, Plot, axis, reach
from sifting.report.tables import Table

EARLY = 0.15  # of the time: what lies before is steep and says little


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


def predicted(points: Sequence[tuple[str, str, float, float]]) -> bytes:
    """Predicted against measured saving, one point per task and arm.

    Args:
        points: task, arm, predicted and measured saving.
    """
    names = list(dict.fromkeys(task for task, *_ in points))

    def plot(canvas: Canvas) -> Plot:
        lines = []
        for index, task in enumerate(names):
            mine = [(100 * x, 100 * y) for name, _, x, y in points if name == task]
            x, y = zip(*mine, strict=True)
            lines.append(Line(index, x, y, joined="no", size=6))
        across = reach([0.0, *(x for line in lines for x in line.x)])
        up = reach([0.0, *(y for line in lines for y in line.y)])
        low, high = min(across[0], up[0]), max(across[1], up[1])
        equal = Line(0, [low, high], [low, high], every=0, tone="muted")
        none = Line(0, [0.0, 0.0], list(up), every=0, tone="muted")
        return Plot(
            axis("predicted saving (%)", across, canvas.across()),
            axis("measured saving (%)", up, canvas.up, side="y", grid=True),
            (equal, none, *lines),
            (0.0,),
        )

    marks = arm_marks(names, range(len(names)))
    return Drawing(
        "predicted", "", "Predicted and measured", "", Table("", [], []), marks, plot
    ).file("svg")


def pairs(results: Mapping[str, Result]) -> list[tuple[str, str, float, float]]:
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
