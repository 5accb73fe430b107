"""The pages of results: one table of all tasks, and a page for each. Nothing here measures.

PAGES/README.md         its part between the markers is rewritten; made where there is none
PAGES/bench/TASK.md     a page, and TASK.svg
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sifting import checksums, files
from sifting.bench import protocol
from sifting.bench.registry import LANGUAGE, TASKS
from sifting.bench.results import read_results
from sifting.bench.wording import (
    ARM_COLUMNS,
    COLUMNS,
    Result,
    arm_rows,
    cut_short,
    metric_shown,
    planned_seconds,
    quality_rows,
    row,
    worst_harm,
)
from sifting.markdown import Markdown, table
from sifting.report.figures.canvas import capital

START, END = "<!-- tasks: sift bench report -->", "<!-- end of tasks -->"
NEW = f"# Results\n\n{START}\n{END}\n"  # of a folder that has no page yet
NOTES = "_notes.json"  # what people say of a task
RIGHT = (
    "the sign of the prediction is right for {right} of {count} points, and for all points of {tasks} of {all} "
    "tasks"
)
WORDS = {3: "three", 4: "four", 5: "five"}


def write_pages(results: Path, pages: Path) -> list[Path]:
    """Write all pages and plots; returns them.

    Args:
        results: folder of the results.
        pages: folder of the pages.
    """
    from sifting.bench import plots

    found = read_results(results)
    (pages / "bench").mkdir(parents=True, exist_ok=True)
    written = []
    for path, text in texts(results, pages).items():
        files.write_text(path, text)
        written.append(path)
    for name, result in found.items():
        path = pages / "bench" / f"{name}.svg"
        files.write_bytes(path, plots.curves(name, result))
        written.append(path)
    points = plots.pairs(found)
    if points:
        path = pages / "bench" / "predicted.svg"
        files.write_bytes(path, plots.predicted(points))
        written.append(path)
    return written


def texts(results: Path, pages: Path) -> dict[Path, str]:
    """Every page as it is to be, by its path.

    Args:
        results: folder of the results.
        pages: folder of the pages, whose README, where there is one, has the markers.
    """
    found, notes = read_results(results), _optional(results / NOTES)
    ordered = {name: found[name] for name in [*TASKS, *LANGUAGE] if name in found}
    ordered |= {name: result for name, result in found.items() if name not in ordered}
    readme = pages / "README.md"
    text = readme.read_text(encoding="utf-8") if readme.exists() else NEW
    if START not in text or END not in text:
        raise ValueError(f"{readme} has no place for the table: put {START} and {END} into it")
    block = f"{START}\n{summary(ordered)}\n{END}"
    pattern = re.compile(f"{re.escape(START)}.*?{re.escape(END)}", flags=re.DOTALL)
    made = {readme: pattern.sub(lambda _: block, text)}
    for name, result in ordered.items():
        made[pages / "bench" / f"{name}.md"] = page(name, result, notes.get(name))
    return made


def _optional(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    return checksums.read_json(path, required=False)


def summary(results: Mapping[str, Result]) -> str:
    """The table of all tasks, and the picture of what was predicted, where it was."""
    if not results:
        return "Nothing has been run yet."
    rows = [[Markdown(cell) for cell in row(name, result)] for name, result in results.items()]
    hours = sum(map(planned_seconds, results.values())) / 3600
    parts = [
        table(COLUMNS, rows),
        f"By their tables of costs, all these runs take {hours:.1f} hours of one core, evaluations aside, half of "
        "that where two tasks run side by side; every command continues where it was stopped.",
    ]
    points = _points(results)
    if points:
        wrong = [task for task, _, said, was in points if (said > 0) != (was > 0)]
        asked = {task for task, *_ in points}
        right = RIGHT.format(
            right=len(points) - len(wrong),
            count=len(points),
            tasks=len(asked - set(wrong)),
            all=len(asked),
        )
        parts.append(
            "![predicted saving against measured saving](bench/predicted.svg)\n\nEach point is a task and an "
            "arm: what `sift bench advise` predicted on a seed of its own, and 1 less the time to where the "
            f"baseline ends. {capital(right)}."
        )
    return "\n\n".join(parts)


def _points(results: Mapping[str, Result]) -> list[Any]:
    if not any(result.get("advice") for result in results.values()):
        return []
    from sifting.bench.plots import pairs  # which draws, and so loads what draws

    return pairs(results)


def page(name: str, result: Result, note: str | None) -> str:
    """One task's page."""
    base = result["arms"][protocol.BASELINE]
    asked, machine = result["asked"], result["machine"]
    equal = "time" if asked["equal"] == "time" else "updates"
    alike = (
        f"Every arm has the {equal} of {asked['updates']:,} updates of the baseline, which ends at "
        f"{metric_shown(result, base['mean'])} ({result['metric']})."
    )
    if equal == "time" and any(arm.startswith("auto") for arm in result["arms"]):
        alike += (
            " The autopilot plans for the baseline's updates and ends sooner by what it gains; what it spends "
            "on measuring is charged to it."
        )
    rates = "All arms use one learning rate."
    if result["rates"]:
        whose = (
            "The learning rate of each was"
            if len(result["rates"]) > 1
            else "The baseline's learning rate was"
        )
        serves = "" if len(result["rates"]) > 1 else "; all arms use it"
        tuned_at = result.get("tuned_at") or asked["updates"]
        length = "" if tuned_at == asked["updates"] else f" after {tuned_at:,} updates"
        tried = sorted({len(found) for found in result["tried"].values()})
        counts = " to ".join(WORDS.get(n, str(n)) for n in dict.fromkeys((tried[0], tried[-1])))
        rates = (
            f"{whose} the best of {counts} on held-out samples{length}, by a seed that is not used "
            f"below{serves}."
        )
    parts = [
        f"# {name}",
        f"{result['about'][:1].upper()}{result['about'][1:]}. {alike} {rates}",
        *([note] if note else []),
        table(ARM_COLUMNS, [[Markdown(cell) for cell in line] for line in arm_rows(result)]),
        "`time to the baseline's end ÷ baseline` is the time until an arm first reached what every seed of the "
        "baseline reached at its best, over the baseline's; `÷ a baseline that ends as well` is 1 over the "
        "length of a baseline that ends where the arm does, by the baselines of other lengths in the table. "
        "( – ) are 95 % intervals over "
        f"seeds. The worst measurable harm: {worst_harm(result)}.",
        result["overall"],
        *filter(None, [cut_short(result)]),
        *_predicted(result),
        f"![{result['metric']} over time]({name}.svg)",
    ]
    lines = quality_rows(result)
    if lines:
        quarters = ["arm", "", "1st quarter", "2nd", "3rd", "4th"]
        parts += [
            "## How well they chose",
            table(quarters, [[Markdown(cell) for cell in line] for line in lines]),
        ]
    parts.append(_made_by(result, machine))
    return "\n\n".join(parts) + "\n"


def _predicted(result: Result) -> list[str]:
    """What was advised before, where somebody asked."""
    advice = result.get("advice")
    if not advice:
        return []
    return [f"Advice, by `sift bench advise {result['task']}`: {advice['sentence']}"]


def _made_by(result: Result, machine: Mapping[str, Any]) -> str:
    clock = {"wall": "wall-clock time", "cpu": "processor time"}
    load = result["load"]
    busy = (
        ""
        if load is None
        else f"; load average while it ran: median {load['median']:.1f}, at most {load['largest']:.1f}"
    )
    waited = (
        f"; it waited {result['waited'] / 60:.0f} minutes for a quiet machine"
        if result["waited"]
        else ""
    )
    return (
        f"Made by `{result['command']}` ({planned_seconds(result) / 60:.1f} minutes of one core by its table of "
        "costs, evaluations aside) on "
        f"{machine['cores']} cores of an {machine['processor']}, torch "
        f"{(result['versions'] or {}).get('torch')}, costs in {clock[result['asked']['clock']]}{busy}{waited}."
    )
