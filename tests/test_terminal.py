from __future__ import annotations

import io
import random
import re
import sys
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.table import Table

from sifting.terminal import make_console, print_table, printable, say


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


def test_every_character_that_a_terminal_obeys_is_replaced_and_no_other() -> None:
    """The fast way of text that is all printable agrees with the slow one on all of Unicode."""
    for code in range(sys.maxunicode + 1):
        unsafe = unicodedata.category(chr(code)) in ("Cc", "Cf", "Cs", "Co")
        kept = not unsafe or chr(code) in "\n\t"
        assert (printable(chr(code)) == chr(code)) == (kept or code == 0xFFFD), hex(code)


def test_lines_and_tabs_stay() -> None:
    assert printable("a\n\tb\r") == "a\n\tb�"


@pytest.mark.parametrize("width", [40, 80])
def test_a_table_that_is_too_wide_comes_in_parts_of_whole_fields(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))  # kept to though nobody looks
    out = io.StringIO()
    columns = ["arm", *(f"operation {i}" for i in range(9))]
    rows = [[name, *(f"{i}.{i}{i}" for i in range(9))] for name in ("baseline", "mine:tent:")]
    print_table(make_console(file=out), columns, rows, title="[b]milliseconds[/b]")
    lines = out.getvalue().splitlines()
    assert lines[0] == "[b]milliseconds[/b]"
    assert max(map(len, lines)) <= width
    for row in rows:
        found = [cell for line in lines if line.startswith(row[0]) for cell in line.split()[1:]]
        assert found == row[1:]


HEADS = (
    "points to baseline",
    "time to 76.56 % ÷ baseline",
    "accuracy %",
    "samples ÷ baseline",
    "s",
)
FIELDS = ("–", "1", "−27.34", "reached by 1 of 2", "78.91 ± 29.83", "0.82 (0.68–0.98)")


@settings(max_examples=150, deadline=None)
@given(
    heads=st.lists(st.sampled_from(HEADS), min_size=1, max_size=7),
    width=st.integers(30, 130),
    draw=st.randoms(use_true_random=False),
)
def test_fields_are_whole_whatever_the_heads_and_the_width(
    heads: list[str], width: int, draw: random.Random
) -> None:
    out = io.StringIO()
    rows = [[name, *(draw.choice(FIELDS) for _ in heads)] for name in ("baseline", "mine:tent")]
    print_table(make_console(file=out, width=width), ["arm", *heads], rows)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for name, *fields in rows:
        found = "  ".join(line.removeprefix(name) for line in lines if line.startswith(name))
        assert [field for field in re.split(r"\s{2,}", found) if field] == fields
    words = " ".join(lines).split()
    assert all(word in words for head in heads for word in head.split())
