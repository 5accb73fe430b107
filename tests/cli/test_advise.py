"""`sift advise`: its arguments, its file, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sifting.cli.advise import main, parse


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
    ],
)
def test_mistakes_are_named(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(argv) == 2
    assert said in capsys.readouterr().err
