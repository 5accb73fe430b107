"""What the commands of `sift theory` print with."""

from __future__ import annotations

import math

from rich.console import Console

from sifting.cli.theory_tables import chunks, open_console, progress_bar, table, until, with_error


def test_tables_are_whole_in_a_narrow_terminal(capsys):
    rows = [["squares", "0.9345 ±0.08", "1.5", "a long remark"], ["", "–", "2,000", "another"]]
    for width, lines in ((80, 7), (46, 9), (42, 9), (20, 9)):
        console = Console(width=width, force_terminal=False)
        table(console, "t", ["problem", "loss of the mean", "K", "meaning"], rows, wrap=(3,))
        out = capsys.readouterr().out
        assert console.width == width
        assert "…" not in out
        for cell in ("squares", "0.9345 ±0.08", "2,000"):
            assert cell in out, (width, cell)
        assert max(map(len, out.splitlines())) <= max(width, 42)  # what the cells need
        assert len(out.splitlines()) == lines, (width, out)


def test_a_file_has_room_for_every_column(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert open_console().width >= 120


def test_progress_is_for_terminals(capsys):
    with progress_bar("simulating") as progress:
        progress(1, 2)
    assert capsys.readouterr() == ("", "")


def test_numbers_in_words():
    assert list(chunks(10, 4)) == [4, 4, 2]
    assert [until(k) for k in (0, 2865.4, math.inf)] == ["at no K", "until K ≈ 2,865", "at every K"]
    assert (with_error(1.23456, 0.0123), with_error(1.5, math.nan)) == ("1.235 ±0.01", "1.5")
