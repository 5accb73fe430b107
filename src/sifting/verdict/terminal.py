"""A verdict in the terminal: every column whole, however narrow it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from sifting.terminal import printable
from sifting.verdict import advice, wording
from sifting.verdict.prose import Prose

if TYPE_CHECKING:
    from rich.console import Console

    from sifting.verdict import Verdict

GAP = 2  # columns between fields
NAME = 28  # of an arm; longer ones go on in the next line


def show(verdict: Verdict, console: Console) -> None:
    """Print a verdict: the table, a sentence for each arm, notes, and one sentence for all.

    Args:
        verdict: of `judge`.
        console: whose width the table keeps to.
    """
    show_table(verdict, console)
    said = [wording.sentence(verdict, arm) for arm in verdict.arms]
    for line in [*said, *wording.notes(verdict), advice.overall(verdict)]:
        console.print(styled(line), soft_wrap=True)


def show_table(verdict: Verdict, console: Console) -> None:
    """Print the table alone, in several parts where it is wider than the console."""
    columns, rows = verdict.table()
    for number, part in enumerate(parts(columns, rows, console.width)):
        if number:
            console.print()
        table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
        for i in (0, *part):
            table.add_column(
                Text(printable(columns[i])),
                justify="right" if i else "left",
                min_width=_width(rows, i) if i else None,
                max_width=None if i else NAME,
                overflow="fold",
            )
        for row in rows:
            table.add_row(*(Text(printable(row[i])) for i in (0, *part)))
        console.print(table)


def parts(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[list[int]]:
    """Which columns stand side by side beside the first, so that none is cut at a width.

    >>> parts(["arm", "gain", "time"], [["sift", "+0.64", "0.82 (0.68–0.98)"]], 24)
    [[1], [2]]
    >>> parts(["arm", "gain", "time"], [["sift", "+0.64", "0.82 (0.68–0.98)"]], 80)
    [[1, 2]]
    """
    first = min(NAME, _width(rows, 0, columns[0]))
    found: list[list[int]] = []
    room = 0
    for i in range(1, len(columns)):
        wide = GAP + _width(rows, i, columns[i])
        if not found or wide > room:
            found.append([])
            room = width - first
        found[-1].append(i)
        room -= wide
    return found


def _width(rows: Sequence[Sequence[str]], i: int, head: str = "") -> int:
    """Of a column: its longest field, or the longest word of its head, which may be wrapped."""
    longest = max((Text(word).cell_len for word in head.split()), default=0)
    return max([longest, *(Text(printable(row[i])).cell_len for row in rows)])


def styled(said: Prose) -> Text:
    """A sentence with its names between backticks and in bold, and nothing taken for markup."""
    text = Text()
    for span in said.spans:
        mark = "`" if span.kind == "name" else ""
        text.append(f"{mark}{printable(span.text)}{mark}", "bold" if span.kind != "text" else "")
    return text
