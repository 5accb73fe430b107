"""docs/theory.md: its Python runs, its commands print what it shows, its names exist."""

import itertools
import re
from pathlib import Path

import pytest

import sifting.theory
from sifting.cli.main import main

DOC = Path(__file__).parents[2] / "docs" / "theory.md"
TEXT = DOC.read_text()
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?")
BLOCKS = re.findall(r"^```(python|console)\n(.*?)^```", TEXT, re.S | re.M)


def assert_alike(printed, shown, command):
    """The same words in the same lines, and numbers that are the same but for 1 %.

    Libraries of linear algebra add up in an order of their own, so that after a thousand steps a
    candidate more or less has been kept.
    """
    got, want = ([line.split() for line in text.strip().splitlines()] for text in (printed, shown))
    assert [len(line) for line in got] == [len(line) for line in want], command
    for a, b in itertools.chain.from_iterable(map(zip, got, want)):
        if a == b:
            continue
        words = [NUMBER.sub("#", word) for word in (a, b)]
        assert words[0] == words[1], (command, a, b)
        numbers = [[float(n.replace(",", "")) for n in NUMBER.findall(word)] for word in (a, b)]
        assert numbers[0] == pytest.approx(numbers[1], rel=0.01), (command, a, b)


def test_a_page_that_shows_something_else_is_found_out():
    for other in ("loss 1.05 ±0.1\nend", "loss 1.00 ±0.1 more\nend", "gain 1.00 ±0.1\nend", "end"):
        with pytest.raises(AssertionError):
            assert_alike("loss 1.00 ±0.1\nend", other, "")
    assert_alike("loss 1,000 ±0.1\nend\n", "loss 1,001 ±0.1\n\nend".replace("\n\n", "\n"), "")


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
        assert_alike(capsys.readouterr().out, output, command)
        shown += 1
    assert shown == 8
    assert round(names["until"]) == 2865
    assert names["gain"] == pytest.approx(3.0, abs=0.05)


def test_every_public_function_is_on_the_page_and_every_figure_exists():
    records = {"Constants", "Interval", "Estimates", "Prediction", "Simulation", "SIGMA_LIMIT"}
    records |= {"RuleComparison", "Course"}
    for name in set(sifting.theory.__all__) - records:
        assert f"`{name}" in TEXT, name
    figures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", TEXT)
    assert len(figures) == 7
    assert all((DOC.parent / figure).is_file() for figure in figures)
