"""`sift advise`: its arguments, its file, and what it refuses."""

from __future__ import annotations

import io
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest
from rich.console import Console

from sifting.advice import wording
from sifting.advice.result import Advice, Phase, Range, Row
from sifting.cli.advise import main, parse, show_advice
from sifting.compare.harness import Comparison
from sifting.terminal import make_console
from sifting.training.assemble import assemble
from sifting.training.config import RunConfig
from sifting.training.locks import locked
from sifting.training.run_folder import RunError
from tests.helpers.problems import build


def test_advice_on_a_users_own_problem_is_shown_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "advice.json"
    target = "tests.helpers.problems:build"
    assert main([target, "--updates", "60", "--out", str(out)]) == 0
    found = json.loads(out.read_text())
    assert found["target"] == target
    assert found["updates"] == 60
    assert "auto" in found["arms"]
    shown = capsys.readouterr().out
    assert found["sentence"] in " ".join(shown.split("\n"))
    assert "held_out=" in shown  # the problem has none, which is said


def test_a_recipe_knows_its_own_length() -> None:
    asked = parse(["resnet", "smoke", "--part", "0.5"])
    assert asked.updates > 0
    assert asked.options.part == 0.5


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["tests.helpers.problems:build"], "give --updates"),
        (["nowhere"], "workload='nowhere' is unknown"),
        (
            ["tests.helpers.problems:build", "--updates", "9", "--arm", "sift"],
            "--arm is for single runs",
        ),
        (["tests.helpers.problems:build", "--updates", "9", "--part", "2"], "part=2"),
        (["tests.helpers.problems:build", "--updates", "9", "--effort", "0"], "effort=0"),
        (
            ["tests.helpers.problems:build", "--updates", "9", "--start", "gone"],
            "gone is not a run",
        ),
        (
            ["tests.helpers.problems:build", "--updates", "9", "--confirm", __file__],
            "cannot write a comparison to",
        ),
        (
            [
                *("tests.helpers.problems:build", "--updates", "9"),
                *("--confirm", "new", "--seeds", "0", "0"),
            ],
            "seeds=(0, 0): give at least one, each once",
        ),
    ],
)
def test_mistakes_are_named_before_anything_is_trained(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    told = capsys.readouterr()
    assert said in " ".join(told.err.split())
    assert not told.out


def test_advice_is_written_before_it_is_confirmed_and_stays_where_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "advice.json"

    def fail(plan: Comparison, console: Console) -> NoReturn:
        assert (plan.seeds, plan.budget) == ((0,), "baseline:30u")
        raise RunError("the disk is gone")

    monkeypatch.setattr("sifting.cli.advise.compare", fail)
    argv = ["tests.helpers.problems:build", "--updates", "30", "--out", str(out)]
    assert main([*argv, "--confirm", str(tmp_path / "both"), "--seeds", "0"]) == 2
    found = json.loads(out.read_text())
    assert found["sentence"]
    assert found["confirmed"] is None


def test_a_run_of_few_updates_is_confirmed_with_fewer_evaluations(tmp_path: Path) -> None:
    words = ["tests.helpers.problems:build", "--confirm", str(tmp_path / "both")]
    short = parse([*words, "--updates", "20"]).comparison
    long = parse([*words, "--updates", "200"]).comparison
    assert short is not None
    assert long is not None
    assert {config.evaluations for config in short.configs.values()} == {10}
    assert {config.evaluations for config in long.configs.values()} == {20}


def test_a_start_is_another_run_and_confirming_begins_anew(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = RunConfig(arm="baseline")
    run = assemble("problem", config, build(seed=0), tmp_path / "run", updates=40)
    run.advance(20)
    run.save()
    run.finish()
    monkeypatch.setattr("sifting.cli.advise.compare", lambda plan, console: (None, None))
    argv = ["tests.helpers.problems:build", "--start", str(tmp_path / "run")]
    assert main([*argv, "--updates", "20"]) == 2
    assert "has made 20 updates, and 20 are planned" in capsys.readouterr().err
    assert main([*argv, "--updates", "60"]) == 2  # it would have ended with torch's error, after 40
    assert "has total_steps=40, and this run's has 60" in " ".join(capsys.readouterr().err.split())
    assert main([*argv, "--updates", "40", "--confirm", str(tmp_path / "both")]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "100% of those of 40 updates that are left at" in told
    assert "the comparison begins with new weights" in told


@pytest.mark.parametrize("width", [50, 80])
def test_the_table_is_whole_at_any_width_and_left_out_where_it_is_empty(width: int) -> None:
    rows = (Row("a-scorer-of-my-own", 2, 0.01, 0.61, 1.13, 0.6, 0.04), Row("input", 4, 0.02))
    phase = Phase(0.0, 0.5, 10, rows, "plain", Range(1, 1, 1), "nothing is known")
    advice = Advice("mine:tent:", 40, 20, (phase,), Range(0, 0, 0))
    out = io.StringIO()
    show_advice(advice, make_console(file=out, width=width))
    table = out.getvalue()[: out.getvalue().index("Leave it off")]
    assert max(map(len, table.splitlines())) <= width
    for row in wording.rows(advice):
        for field in row:
            assert field in table
    assert table.count("0% to 50%") == (2 if width == 50 else 1)  # once in each part
    empty = io.StringIO()
    show_advice(replace(advice, phases=()), make_console(file=empty, width=width))
    assert "phase" not in empty.getvalue()


def test_the_second_process_at_a_file_is_refused_by_the_name_of_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "found.json"
    with locked(tmp_path, file=out.name):
        assert main(["tests.helpers.problems:build", "--updates", "20", "--out", str(out)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"found.json is in use by process {os.getpid()}" in said
    assert not out.exists()
