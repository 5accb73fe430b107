"""docs/theory.md: its Python runs, its commands print what it shows, its names exist."""

import re
from pathlib import Path

import pytest

import sifting.theory
from sifting.cli.main import main

DOC = Path(__file__).parents[2] / "docs" / "theory.md"
TEXT = DOC.read_text()
BLOCKS = re.findall(r"^```(python|console)\n(.*?)^```", TEXT, re.S | re.M)


def test_python_and_commands_do_what_the_page_shows(tmp_path, monkeypatch, undrawn, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("COLUMNS", raising=False)
    names: dict = {}
    shown = 0
    for kind, block in BLOCKS:
        if kind == "python":
            exec(block, names)
            continue
        command, _, output = block.partition("\n")
        assert main(command.removeprefix("$ sift ").split()) == 0
        printed = [line.rstrip() for line in capsys.readouterr().out.strip("\n").splitlines()]
        assert printed == output.rstrip("\n").splitlines(), command
        shown += 1
    assert shown == 8
    assert round(names["until"]) == 2865
    assert names["gain"] == pytest.approx(3.0, abs=0.05)


def test_every_public_function_is_on_the_page_and_every_figure_exists():
    records = {"Constants", "Interval", "Estimates", "Prediction", "Simulation", "SIGMA_LIMIT"}
    records |= {"Comparison", "Course"}
    for name in set(sifting.theory.__all__) - records:
        assert f"`{name}" in TEXT, name
    figures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", TEXT)
    assert len(figures) == 7
    assert all((DOC.parent / figure).is_file() for figure in figures)
