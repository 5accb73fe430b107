"""The terminal: what users named is shown as it is, never interpreted."""

from __future__ import annotations

import os
import sys
import unicodedata
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 140  # of tables in a log file, where COLUMNS says nothing else
GAP = 2  # columns between fields of a table
NAME = 28  # of a row's name; longer ones go on in the next line
_UNSAFE = ("Cc", "Cf", "Cs", "Co")  # control, direction marks and the like, half surrogates


def printable(text: object) -> str:
    """Text without what a terminal would obey: escapes, carriage returns, marks of direction.

    >>> printable("a\\x1b[2Jb\\u202ec")
    'a�[2Jb�c'
    """
    text = str(text)
    if text.isprintable():  # which is stricter, and ten times as fast
        return text
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in _UNSAFE else "\N{REPLACEMENT CHARACTER}"
        for c in text
    )


def say(*parts: object, error: bool = False) -> None:
    """Print a line, to standard error where it is about a mistake."""
    line = printable(" ".join(map(str, parts)))
    print(line, file=sys.stderr if error else sys.stdout, flush=True)


def make_console(**options: Any) -> Console:
    """A console that takes no markup and no emoji codes: `mine:tent:` is a name.

    Args:
        options: of rich's `Console`.
    """
    from rich.console import Console

    plain: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
    console = Console(**plain, **options)
    told = os.environ.get("COLUMNS", "").isdigit()  # which rich keeps to
    if console.is_terminal or "width" in options or told:
        return console
    return Console(**plain, **options, width=WIDTH)


def print_table(
    console: Console,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str | None = None,
    bold: Collection[tuple[int, int]] = (),
) -> None:
    """Print a table, in several parts where it is wider than the console: no field is cut.

    Args:
        columns: their names; the first is that of the rows, and stands in every part.
        rows: of text, each as long as `columns`.
        title: printed above it.
        bold: row and column of the fields that stand out.
    """
    from rich.table import Table
    from rich.text import Text

    if title is not None:
        console.print(Text(printable(title)))
    for number, part in enumerate(parts(columns, rows, console.width)):
        if number:
            console.print()
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
        for i, wide in zip((0, *part), _widths(columns, rows, part, console.width), strict=True):
            head, justify = Text(printable(columns[i])), "right" if i else "left"
            table.add_column(head, justify=justify, width=wide, overflow="fold")  # type: ignore[arg-type]
        for place, row in enumerate(rows):
            styles = ["bold" if (place, i) in bold else "" for i in (0, *part)]
            fields = [printable(row[i]) for i in (0, *part)]
            table.add_row(*map(Text, fields, styles))
        console.print(table)


def parts(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Which columns stand side by side beside the first, so that none is cut at a width.

    >>> parts(["arm", "gain", "time"], [["sift", "+0.64", "0.82 (0.68–0.98)"]], 24)
    [[1], [2]]
    >>> parts(["arm", "gain", "time"], [["sift", "+0.64", "0.82 (0.68–0.98)"]], 80)
    [[1, 2]]
    """
    first = _least(columns, rows, 0)
    found: list[list[int]] = []
    room = 0
    for i in range(1, len(columns)):
        wide = GAP + _least(columns, rows, i)
        if not found or wide > room:
            found.append([])
            room = width - first
        found[-1].append(i)
        room -= wide
    return found


def _widths(
    columns: Sequence[str], rows: Sequence[Sequence[str]], part: Sequence[int], width: int
) -> list[int]:
    """Of the columns of a part: what they need, and what is left goes to heads that are wrapped.

    They are not left to rich, which widens heads at the cost of the last column's fields.
    """
    shown = (0, *part)
    found = [_least(columns, rows, i) for i in shown]
    left = width - sum(found) - GAP * len(part)
    for place, i in enumerate(shown):
        more = max(0, min(left, _cells(columns[i]) - found[place]))
        found[place] += more
        left -= more
    return found


def _least(columns: Sequence[str], rows: Sequence[Sequence[str]], i: int) -> int:
    """What a column needs: its longest field, or the longest word of its head, which may be wrapped."""
    needed = max(map(_cells, [*columns[i].split(), *(row[i] for row in rows)]), default=0)
    return needed if i else min(NAME, needed)


def _cells(text: str) -> int:
    """How many columns of the terminal a text takes."""
    from rich.text import Text

    return Text(printable(text)).cell_len
