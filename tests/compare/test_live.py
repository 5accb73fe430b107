"""What a comparison shows while it runs."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from sifting.compare.live import Board, span, tell
from sifting.compare.turns import PlannedRun
from sifting.recipes import resnet


def test_the_board_shows_a_line_for_each_arm(tmp_path: Path) -> None:
    table = {"forward": 1.0}
    cells = [
        PlannedRun(replace(resnet.PRESETS["smoke"], arm=arm), tmp_path / arm, 10, 20.0, {}, table)
        for arm in ("baseline", "sift")
    ]
    screen = io.StringIO()
    board = Board(Console(file=screen, force_terminal=True, width=100, no_color=True), cells)
    with board.shown():
        for cell in cells:
            record = {"step": 5, "seconds": {"scoring": 1.0, "forward": 3.0}, "metric": "accuracy"}
            board.watch(cell, {**record, "loss": 2.0, "selection": {"rho_approx": 1.25}})
            board.watch(cell, {**record, "accuracy": 0.5})
        board.ended(cells[0], "finished")
        board.ended(cells[1], "failed")
    lines = [line.split() for line in screen.getvalue().splitlines()]
    assert ["baseline", "0", "5/10", "2.000", "50.00%", "1.25", "25%"] in lines
    assert "sift, seed 0: diverged, accuracy 0.5000; 2 of 2 runs, left 0:00" in screen.getvalue()


def test_without_a_terminal_only_the_ends_of_runs_are_said(tmp_path: Path) -> None:
    run = PlannedRun(resnet.PRESETS["smoke"], tmp_path / "run", 10, 20.0, {}, {"forward": 1.0})
    screen = io.StringIO()
    board = Board(Console(file=screen, width=100), [run])
    with board.shown():
        board.watch(run, {"step": 5, "seconds": {"forward": 3.0}, "metric": "accuracy"})
        assert screen.getvalue() == ""
        board.ended(run, "finished")
    assert screen.getvalue().startswith(f"{run.name}: finished; 1 of 1 runs")


def test_names_are_printed_as_they_are() -> None:
    screen = io.StringIO()
    tell(Console(file=screen, force_terminal=True, width=20), "mine:tent: [bold]x[/] \x1b[2J" * 3)
    assert ":tent: [bold]x[/]" in screen.getvalue()
    assert "\x1b" not in screen.getvalue()
    assert screen.getvalue().count("\n") == 1, "one line, however narrow the terminal"


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0:00"), (59.6, "1:00"), (3599.7, "1:00:00"), (math.inf, "?"), (math.nan, "?")],
)
def test_spans_of_time(seconds: float, shown: str) -> None:
    assert span(seconds) == shown
