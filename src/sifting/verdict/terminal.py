"""A verdict in the terminal: every column whole, however narrow it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from sifting.terminal import print_table, printable
from sifting.verdict import advice, wording
from sifting.verdict.prose import Prose

if TYPE_CHECKING:
    from rich.console import Console

    from sifting.verdict import Verdict


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
    print_table(console, *verdict.table())


def styled(said: Prose) -> Text:
    """A sentence with its names between backticks and in bold, and nothing taken for markup."""
    text = Text()
    for span in said.spans:
        mark = "`" if span.kind == "name" else ""
        text.append(f"{mark}{printable(span.text)}{mark}", "bold" if span.kind != "text" else "")
    return text
