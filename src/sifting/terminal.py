"""The terminal: what users named is shown as it is, never interpreted."""

from __future__ import annotations

import sys
import unicodedata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDTH = 140  # of tables in a log file
_UNSAFE = ("Cc", "Cf", "Cs", "Co")  # control, direction marks and the like, half surrogates


def printable(text: object) -> str:
    """Text without what a terminal would obey: escapes, carriage returns, marks of direction.

    >>> printable("a\\x1b[2Jb\\u202ec")
    'a�[2Jb�c'
    """
    return "".join(
        c if c in "\n\t" or unicodedata.category(c) not in _UNSAFE else "\N{REPLACEMENT CHARACTER}"
        for c in str(text)
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
    if console.is_terminal or "width" in options:
        return console
    return Console(**plain, **options, width=WIDTH)
