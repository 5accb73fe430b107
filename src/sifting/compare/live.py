"""What a comparison shows while it runs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from sifting.compare.manifest import Manifest
from sifting.compare.turns import PlannedRun, TimeLeft
from sifting.measure.clocks import OPERATIONS
from sifting.terminal import print_table, printable


def span(seconds: float | None) -> str:
    """A time for people.

    >>> span(75), span(7322), span(None)
    ('1:15', '2:02:02', '?')
    """
    if seconds is None or not math.isfinite(seconds):
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def tell(console: Console, line: object) -> None:
    """Print a line as it is: names in it are neither markup nor emoji nor escapes."""
    text = printable(line)
    console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)


class Board:
    """A line for each arm, of the seed under way, and the time left overall.

    Args:
        console: where to show it.
        runs: all of the comparison.
    """

    def __init__(self, console: Console, runs: Sequence[PlannedRun]) -> None:
        self.console, self.runs = console, runs
        self.left = TimeLeft(runs)
        self.over = sum(run.over for run in runs)
        self.seen: dict[str, dict[str, Any]] = {}
        self.live: Live | None = None

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show it, rewritten with every record, where there is a terminal."""
        if not self.console.is_terminal:
            yield
            return
        with Live(self.render(), console=self.console, refresh_per_second=4) as self.live:
            yield
        self.live = None

    def watch(self, run: PlannedRun, record: Mapping[str, Any]) -> None:
        """Take in a record of a run."""
        seen = self.seen.setdefault(run.config.arm, {})
        if seen.get("path") != run.path:
            seen.clear()
        seen.update(record, path=run.path, seed=run.config.seed, planned=run.updates)
        seen.update(record.get("selection") or {})
        self.left.note(run, int(record["step"]))
        if self.live is not None:
            self.live.update(self.render())

    def ended(self, run: PlannedRun, status: str) -> None:
        """Take in that a run is over."""
        self.over += 1
        self.left.end(run)
        last = self.seen.get(run.config.arm, {})
        last = last if last.get("path") == run.path else {}
        metric = last.get("metric", "")
        shown = f", {metric} {_number(last[metric], '.4f')}" if metric in last else ""
        how = "diverged" if status == "failed" else status
        done = f"{self.over} of {len(self.runs)} runs, left {span(self.left.seconds)}"
        tell(self.console, f"{run.name}: {how}{shown}; {done}")
        if self.live is not None:
            self.live.update(self.render())

    def render(self) -> Group:
        """The board as it is."""
        table = Table(box=None, pad_edge=False)
        metric = next((seen["metric"] for seen in self.seen.values()), "metric")
        for name in ("arm", "seed", "update", "loss", metric, "rho", "scoring"):
            table.add_column(Text(printable(name)), justify="left" if name == "arm" else "right")
        for arm, seen in self.seen.items():
            spent = sum(seen["seconds"].values())
            table.add_row(
                Text(printable(arm)),
                str(seen["seed"]),
                f"{seen['step']}/{seen['planned']}",
                _number(seen.get("loss"), ".3f"),
                _number(seen.get(metric), ".2%" if "acc" in metric else ".4f"),
                _number(seen.get("rho_approx"), ".2f"),
                _number(seen["seconds"].get("scoring", 0.0) / spent if spent else None, ".0%"),
            )
        line = f"{self.over} of {len(self.runs)} runs done, left {span(self.left.seconds)}"
        return Group(table, Text(line))


def _number(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def show_plan(manifest: Manifest, console: Console) -> None:
    """Print milliseconds of each operation, and the updates that the budget allows each arm."""
    rows = [
        [
            arm,
            *(f"{1e3 * row.table[name]:.4g}" for name in OPERATIONS),
            str(row.updates),
            f"{row.seconds:.1f}",
        ]
        for arm, row in manifest.arms.items()
    ]
    title = "milliseconds of each operation, and the plan"
    print_table(console, ["arm", *OPERATIONS, "updates", "seconds"], rows, title=title)
