"""What the commands of `sift theory` print with: tables, a console of a fixed width, progress."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from rich.console import Console


def table(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: tuple[int, ...] = (),
    wrap: tuple[int, ...] = (),
) -> None:
    """Print a table, its columns to the right but for those in `left`.

    Where it is too wide, headings are broken into lines, and so are the cells of the columns in
    `wrap`; no other cell is ever cut.
    """
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    cells = [max((len(row[i]) for row in rows), default=0) for i in range(len(columns))]
    edges = 3 * len(columns) - 1
    if sum(map(max, cells, map(len, columns))) + edges > console.width:
        columns = [_broken(name, cell) for name, cell in zip(columns, cells, strict=True)]
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i in left else "right", no_wrap=i not in wrap)
    for row in rows:
        table.add_row(*row)
    for i in wrap:
        cells[i] = max(len(word) for row in rows for word in row[i].split())
    needed = edges + sum(
        max(cell, *map(len, name.split("\n"))) for cell, name in zip(cells, columns, strict=True)
    )
    width = console.width
    console.width = max(width, needed)  # too narrow still: the terminal breaks the lines
    console.print(table)
    console.width = width


def _broken(heading: str, width: int) -> str:
    """The heading in lines of `width` or of its longest word."""
    longest = max(map(len, heading.split()), default=1)
    return "\n".join(textwrap.wrap(heading, max(width, longest, 1))) or heading


def open_console() -> Console:
    """The terminal, or a file of at least 120 columns."""
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console.width = max(console.width, 120)
    return console


@contextmanager
def progress_bar(task: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal that is gone in the end; nothing in a file."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        item = bar.add_task(task, total=None)
        yield lambda done, total: bar.update(item, completed=done, total=total)


def chunks(total: int, size: int) -> Iterator[int]:
    """`total` in parts of `size` and what is left."""
    for start in range(0, total, size):
        yield min(size, total - start)


def until(steps: float) -> str:
    """Up to how many steps, in words."""
    if steps == 0:
        return "at no K"
    return "at every K" if steps == float("inf") else f"until K ≈ {steps:,.0f}"


def with_error(mean: float, error: float) -> str:
    """A mean and its standard error, where there is one."""
    return f"{mean:.4g} ±{error:.1g}" if np.isfinite(error) else f"{mean:.4g}"
