"""Markdown: tables, and text that is shown as it is. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence


class Markdown(str):
    """Text that is Markdown already, and so is not escaped again."""

    __slots__ = ()


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line.

    >>> print(escape("a|b <script> _c_d"))
    a\\|b &lt;script&gt; \\_c_d
    """
    if isinstance(text, Markdown):
        return text
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    for sign in "\\`*[]|":
        text = text.replace(sign, f"\\{sign}")
    # inside a word it is only an underscore
    return re.sub(r"(?<![^\W_])_|_(?![^\W_])", r"\\_", text)


def bold(text: str) -> Markdown:
    """Text in bold.

    >>> bold("60.00 ± 0.00")
    '**60.00 ± 0.00**'
    """
    return Markdown(f"**{escape(text)}**")


def code(text: str) -> Markdown:
    """Text set off as code; a fence longer than any run of backticks in it keeps it whole.

    >>> print(code("mine:half"), code("a`b"))
    `mine:half` `` a`b ``

    Only the bar, which would end a field of a table, is escaped inside it.
    """
    text = " ".join(text.split()).replace("|", "\\|")
    longest = max((len(run) for run in re.findall(r"`+", text)), default=0)
    fence, space = "`" * (longest + 1), " " if "`" in text else ""
    return Markdown(f"{fence}{space}{text}{space}{fence}")


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table, every field escaped unless it is `Markdown` already.

    >>> print(table(["arm", "gain"], [["a|b", bold("2.0")]]))
    | arm | gain |
    |---|---|
    | a\\|b | **2.0** |

    Args:
        columns: heads.
        rows: fields of each row, one for each column.
    """
    lines = [_line(columns), "|" + "---|" * len(columns)]
    for row in rows:
        if len(row) != len(columns):
            raise ValueError(f"a row of {len(row)} fields, {list(row)}, in {len(columns)} columns")
        lines.append(_line(row))
    return "\n".join(lines)


def _line(fields: Sequence[str]) -> str:
    return f"| {' | '.join(map(escape, fields))} |"
