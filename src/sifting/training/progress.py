"""The live progress line of a run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from sifting.terminal import make_console, printable


def describe(name: str, record: Mapping[str, Any], seen: dict[str, Any]) -> str:
    """One line: step, loss, accuracy, samples a second, share of scoring, ρ, time left.

    >>> describe("sift", {"step": 10, "planned": 100, "loss": 2.0, "samples_trained": 320,
    ...          "seconds": {"scoring": 1.0, "forward": 3.0}}, {})
    'sift  step 10/100  loss 2.000  80 samples/s  scoring 25 %  left 0:00:36'
    """
    seen.update(record)
    seen.update(record.get("selection") or {})
    spent = sum(record["seconds"].values())
    parts = [name, f"step {record['step']}/{record.get('planned', '?')}"]
    if seen.get("loss") is not None:
        parts.append(f"loss {seen['loss']:.3f}")
    if seen.get("accuracy") is not None:
        parts.append(f"accuracy {seen['accuracy']:.2%}")
    if spent > 0:
        parts.append(f"{record['samples_trained'] / spent:.0f} samples/s")
        if record.get("tokens_trained"):
            parts.append(f"{record['tokens_trained'] / spent:.0f} tokens/s")
        parts.append(f"scoring {100 * record['seconds'].get('scoring', 0.0) / spent:.0f} %")
    if seen.get("rho_approx") is not None:
        parts.append(f"rho {seen['rho_approx']:.2f}")
    if isinstance(record.get("planned"), int) and record["step"]:
        # by the run's own clocks, which continue where it is resumed
        left = spent * (record["planned"] - record["step"]) / record["step"]
        minutes, seconds = divmod(round(left), 60)
        parts.append(f"left {minutes // 60}:{minutes % 60:02d}:{seconds:02d}")
    return "  ".join(parts)


@contextmanager
def progress_line(
    name: str, *, shown: bool = True
) -> Iterator[Callable[[Mapping[str, Any]], None]]:
    """A line that is rewritten with every record; a line for each evaluation where there is no terminal.

    It starts with the first record: before it, reading the data may have a bar of its own.
    """
    console, name = make_console(quiet=not shown), printable(name)
    seen: dict[str, Any] = {}
    live = Live(Text(name), console=console, refresh_per_second=4, transient=False)

    def watch(record: Mapping[str, Any]) -> None:
        line = describe(name, record, seen)
        if console.is_terminal:
            live.start()  # does nothing where it is on
            live.update(Text(line))
        elif shown and record.get("kind") == "eval":
            print(line, flush=True)  # whole, however narrow a log file is taken to be

    try:
        yield watch
    finally:
        live.stop()


@contextmanager
def reading_bar(name: str, *, shown: bool = True) -> Iterator[Callable[[int, int | None], None]]:
    """A bar over the bytes of a corpus with rate and time left; nothing where none are read."""
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=make_console(stderr=True, quiet=not shown))
    task = bar.add_task(printable(name), total=None)

    def progress(done: int, total: int | None) -> None:
        bar.start()
        # the total is estimated, and may turn out too low
        bar.update(task, completed=done, total=None if total is None else max(done, total))

    try:
        yield progress
    finally:
        if bar.tasks[0].completed:  # else there was no line to end
            bar.stop()
