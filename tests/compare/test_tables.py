"""Tables of a grid in the paper's form."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import pytest

from sifting.compare.tables import GridField, GridTable
from sifting.terminal import make_console
from sifting.training.run_folder import Run


def made(*accuracies: float | None) -> list[Run]:
    return [
        Run(
            Path("run"),
            "failed" if value is None else "finished",
            {},
            {},
            [],
            {"final": {"accuracy": value or 0.0}},
        )
        for value in accuracies
    ]


def entry(*accuracies: float | None, planned: int = 3) -> GridField:
    return GridField.of(made(*accuracies), chance=0.1, tests=900, planned=planned)


@pytest.mark.parametrize(
    ("accuracies", "text"),
    [
        ((0.5, 0.6, 0.7), "60.00 ± 10.00"),
        ((0.5, None, 0.7), "60.00 ± 14.14 (2 of 3)"),
        ((0.5, 0.13, 0.1), "50.00 (1 of 3)"),  # a guess has a standard error of 0.01 here
        ((0.5, 0.131, 0.5), "37.70 ± 21.30"),
        ((None, 0.1, None), "–"),
        ((0.5, math.nan, 0.7), "60.00 ± 14.14 (2 of 3)"),
        ((0.5, 0.6), ""),
    ],
)
def test_a_field_says_how_many_converged(accuracies: Any, text: str) -> None:
    assert str(entry(*accuracies)) == text


def test_the_best_of_each_column_is_bold_if_all_its_runs_converged() -> None:
    entries = {
        (0.01, "baseline"): entry(0.5, 0.5, 0.5),
        (0.1, "baseline"): entry(0.6, 0.6, 0.6),
        (0.01, "mine:half"): entry(0.9, 0.9, None),
        (0.1, "mine:half"): entry(0.4, 0.4, 0.4),
    }
    table = GridTable(
        "title", (0.01, 0.1), ("baseline", "mine:half"), entries, {"baseline": 9, "mine:half": 7}
    )
    assert table.markdown().splitlines() == [
        "**title**",
        "",
        "| max_lr | Baseline | `mine:half` |",
        "|---|---|---|",
        "| 0.01 | 50.00 ± 0.00 | 90.00 ± 0.00 (2 of 3) |",
        "| 0.1 | **60.00 ± 0.00** | **40.00 ± 0.00** |",
        "",
        "Updates: Baseline 9, mine:half 7.",
    ]
    out = io.StringIO()
    table.show(make_console(file=out, width=40))
    lines = out.getvalue().splitlines()
    assert lines[0] == "title"
    assert max(map(len, lines)) <= 40
    for shown in ("50.00 ± 0.00", "60.00 ± 0.00", "90.00 ± 0.00 (2 of 3)", "mine:half"):
        assert any(shown in line for line in lines)


def test_the_terminal_has_the_same_fields_as_markdown() -> None:
    entries = {(0.01, "baseline"): entry(0.5, 0.5, 0.5), (0.01, "sift"): entry(None, None, None)}
    table = GridTable("[b]digits[/b]", (0.01,), ("baseline", "sift"), entries, {})
    screen = io.StringIO()
    table.show(make_console(file=screen, width=100))
    title, heads, row = screen.getvalue().splitlines()
    assert title.strip() == "[b]digits[/b]"
    assert heads.split() == ["max_lr", "Baseline", "SIFT", "w/", "early", "exit"]
    assert row.split() == ["0.01", "50.00", "±", "0.00", "–"]
