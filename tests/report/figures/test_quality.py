"""How good the choice was, over training."""

from __future__ import annotations

from pathlib import Path

import pytest

from sifting.report import collect
from sifting.report.figures.canvas import WIDE
from sifting.report.figures.quality import drawings
from tests.helpers.run_folders import made, write


def test_rho_and_recall_of_the_arms_that_select_with_what_chance_gives(tmp_path: Path) -> None:
    quarter = {"exit": 1, "score": "loss", "policy": "top", "keep": 0.25}
    for arm, config in (("baseline", {}), ("sift", {}), ("mine", {"selector": quarter})):
        write(made(arm, 0, points=5, **config), tmp_path)
    rho, recall = drawings(collect([tmp_path]).experiments[0])
    assert (rho.key, recall.key) == ("rho", "recall")
    assert {mark.label for mark in rho.marks} == {"mine", "sift", "break-even"}
    plot = rho.plot(WIDE)
    assert [line.y[-1] for line in plot.lines] == pytest.approx([0.9, 0.9])
    assert plot.rules == (1.0,)
    assert recall.plot(WIDE).rules == (0.25, 0.5), "one for each share"


def test_runs_that_never_select_have_no_such_figure(tmp_path: Path) -> None:
    write(made("baseline", 0, points=5), tmp_path)
    assert list(drawings(collect([tmp_path]).experiments[0])) == []
