"""Pictures of the proving ground: learning curves of a task, and what was predicted and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sifting.bench import protocol
from sifting.bench.wording import Result, best_of
from sifting.report.figures.canvas import Canvas, Drawing, arm_marks, capital, dashed, new_axes
from sifting.report.palette import style
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
        arm for arm in dict.fromkeys(wanted) if arm and result["curves"].get(arm, {}).get("figure")
    ]
    scale = 100.0 if result["percent"] else 1.0
    whole = result["curves"][protocol.BASELINE]["seconds"][-1]

    def draw(canvas: Canvas) -> Any:
        figure, axes = new_axes(canvas)
        early = []
        for index, arm in enumerate(arms):
            found = result["curves"][arm]
            shares = [second / whole for second in found["seconds"]]
            heights = [scale * value for value in found["figure"]]
            early += [
                height for share, height in zip(shares, heights, strict=True) if share > EARLY
            ]
            dash, mark = style(index)
            colour = canvas.palette.of(index)
            axes.plot(shares, heights, color=colour, linestyle=dash, marker=mark, markersize=4)
        if early and result["lower_is_better"]:
            axes.set_ylim(top=max(early))
        elif early:
            axes.set_ylim(bottom=min(early))
        if result["target"] is not None:
            dashed(axes, scale * result["target"], canvas)
        axes.set_xlim(left=0)
        axes.set_xlabel("time ÷ the baseline's")
        axes.set_ylabel(f"{result['metric']} (%)" if result["percent"] else result["metric"])
        return figure

    title = f"{capital(name)}: {result['metric']} over time"
    marks = arm_marks(arms, range(len(arms)))
    return Drawing(name, "", title, "", Table("", [], []), marks, draw).file("svg")


def predicted(points: Sequence[tuple[str, str, float, float]]) -> bytes:
    """Predicted against measured saving, one point a task and arm.

    Args:
        points: task, arm, predicted and measured saving.
    """
    names = list(dict.fromkeys(task for task, *_ in points))

    def draw(canvas: Canvas) -> Any:
        figure, axes = new_axes(canvas)
        for index, task in enumerate(names):
            mine = [(x, y) for name, _, x, y in points if name == task]
            axes.scatter(
                [100 * x for x, _ in mine],
                [100 * y for _, y in mine],
                color=canvas.palette.of(index),
                marker=style(index)[1],
            )
        axes.axline((0, 0), slope=1, color=canvas.palette.muted, linewidth=0.8)
        dashed(axes, 0.0, canvas)
        axes.axvline(0.0, color=canvas.palette.muted, linewidth=0.8)
        axes.set_xlabel("predicted saving (%)")
        axes.set_ylabel("measured saving (%)")
        return figure

    marks = arm_marks(names, range(len(names)))
    return Drawing(
        "predicted", "", "Predicted and measured", "", Table("", [], []), marks, draw
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
