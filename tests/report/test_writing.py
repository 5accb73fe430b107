"""Writing a report and its figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sifting.cli import main as cli
from sifting.report import collect, write_html
from sifting.report.figures import drawings
from tests.helpers.run_folders import made, write, write_comparison


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return write_comparison(tmp_path / "runs")


def test_figures_are_written_for_papers(runs: Path, tmp_path: Path) -> None:
    folder = tmp_path / "figures"
    arguments = ["report", str(runs), "-o", str(tmp_path / "r.html"), "--figures", str(folder)]
    assert cli.main(arguments) == 0
    names = {f"{key}.{kind}" for key in METRICS for kind in ("png", "svg")}
    assert {path.name for path in folder.iterdir()} == names
    again = next(iter(drawings(collect([runs]).experiments[0])))
    assert (folder / "time.svg").read_bytes() == again.file("svg"), "the same runs, the same bytes"


METRICS = ("time", "samples", "clocks", "rho", "recall")


def test_a_name_in_any_script_or_with_formulas_can_be_drawn(tmp_path: Path) -> None:
    for number, arm in enumerate(("baseline", "$\\frac{", "学習", "_hidden", "\ud800\x00" * 80)):
        write(replace(made(arm, 0, points=3), path=Path(str(number))), tmp_path)
    found = collect([tmp_path])
    write_html(found, tmp_path / "report.html")
    source = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "学習" in source
    assert "$\\frac{" in source
    assert all(d.file("png") for d in drawings(found.experiments[0]))
