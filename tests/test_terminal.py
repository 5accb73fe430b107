from __future__ import annotations

import io

import pytest
from rich.table import Table

from sifting.terminal import make_console, printable, say


def test_names_are_neither_markup_nor_emoji_nor_escapes(capsys: pytest.CaptureFixture[str]) -> None:
    out = io.StringIO()
    console = make_console(file=out, width=60)
    console.print("mine:tent: [bold]x[/bold]")
    table = Table("[red]arm[/red]", title=":tent: [i]t[/i]")
    console.print(table)
    shown = out.getvalue()
    for text in ("mine:tent: [bold]x[/bold]", "[red]arm[/red]", ":tent: [i]t[/i]"):
        assert text in shown
    say("sift:", "a\x1b]0;owned\x07b", error=True)
    assert capsys.readouterr().err == "sift: a�]0;owned�b\n"


def test_lines_and_tabs_stay() -> None:
    assert printable("a\n\tb\r") == "a\n\tb�"
