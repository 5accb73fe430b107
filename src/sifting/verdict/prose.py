"""Sentences in which names stand: each medium sets the names off in its own way. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sifting.markdown import code, escape
from sifting.terminal import printable

LONGEST = 80  # characters of a name that are shown in a sentence
PieceKind = Literal["text", "name", "strong"]


@dataclass(frozen=True)
class ProsePiece:
    """A piece of a sentence: text of ours, a name that somebody gave, or what to do."""

    text: str
    kind: PieceKind = "text"


@dataclass(frozen=True)
class Prose:
    """A sentence as its pieces.

    >>> said = strong("Not settled.") + " " + names(["sift", "a`b", "c"]) + " are close."
    >>> print(said.plain())
    Not settled. `sift`, `a`b` and `c` are close.
    >>> print(said.markdown())
    **Not settled.** `sift`, `` a`b `` and `c` are close.

    Args:
        spans: the pieces, in their order.
    """

    spans: tuple[ProsePiece, ...] = ()

    def __add__(self, other: str | Prose) -> Prose:
        return Prose(self.spans + prose(other).spans)

    def __radd__(self, other: str) -> Prose:
        return prose(other) + self

    def __bool__(self) -> bool:
        return bool(self.spans)

    def bare(self) -> str:
        """Without any marks, as in a table, where each name has a field of its own."""
        return "".join(span.text for span in self.spans)

    def plain(self) -> str:
        """For a terminal or a log: names between backticks."""
        return "".join(f"`{s.text}`" if s.kind == "name" else s.text for s in self.spans)

    def markdown(self) -> str:
        """For Markdown: names as code, what to do in bold, everything else as it is."""
        return "".join(_markdown(span) for span in self.spans)

    def strong(self) -> str:
        """What to do, alone."""
        return "".join(span.text for span in self.spans if span.kind == "strong")


def _markdown(span: ProsePiece) -> str:
    if span.kind == "name":
        return code(span.text)
    # the spaces around a piece belong to the sentence, and a table's field has none
    inner = span.text.strip()
    before, _, after = span.text.partition(inner) if inner else (span.text, "", "")
    shown = escape(inner)
    return f"{before}{f'**{shown}**' if span.kind == 'strong' else shown}{after}"


def prose(text: str | Prose) -> Prose:
    """Text of ours as a sentence."""
    if isinstance(text, Prose):
        return text
    return Prose((ProsePiece(text),) if text else ())


def strong(text: str) -> Prose:
    """The part of a sentence that says what to do."""
    return Prose((ProsePiece(text, "strong"),))


def name(text: str) -> Prose:
    """A name that somebody gave: cleaned, on one line, cut where it is endless.

    >>> name("a\\x1b[2J\\nb").plain()
    '`a�[2J b`'
    """
    # a name may have megabytes, of which none need be read
    shown = " ".join(printable(text[: 4 * LONGEST]).split())
    return Prose(
        (ProsePiece(shown if len(shown) <= LONGEST else shown[: LONGEST - 1] + "…", "name"),)
    )


def names(given: Sequence[str]) -> Prose:
    """A list of names: commas, and one "and".

    >>> names(["a", "b", "c"]).bare(), names(["a"]).bare()
    ('a, b and c', 'a')
    """
    found = prose("")
    for i, text in enumerate(given):
        found += "" if not i else " and " if i == len(given) - 1 else ", "
        found += name(text)
    return found
