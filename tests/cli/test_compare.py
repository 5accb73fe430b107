"""`sift compare`: mistakes are named before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from sifting.cli import main as sift
from sifting.cli.compare import parse
from tests.helpers.comparisons import OWN, measure_briefly, run

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_briefly(monkeypatch)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["alexnet"], "workload='alexnet' is unknown: choose a recipe (bert, gpt, resnet)"),
        (["no_such_module:build"], "'no_such_module' cannot be imported"),
        (["tests.helpers.problems:absent"], "is not there"),
        (["tests.helpers.problems:number"], "is a int, and must be a function or a Recipe"),
        (
            ["tests.helpers.problems:nothing"],
            "returned a str, not a sifting Problem",
        ),
        (["tests.helpers.problems:broken"], "raised KeyError: 'weights'"),
        (["tests.helpers.problems:misnamed"], "must be a dict with a number under 'f1'"),
        (
            ["tests.helpers.problems:unwritable"],
            "evaluate gave share=tensor(0.2500), a Tensor, which",
        ),
        (["resnet", "huge"], "resnet has no preset 'huge'; it has: paper, small, smoke"),
        ([OWN, "smoke"], "has no preset 'smoke'"),
        ([OWN, "--arms", "sieve"], "arm='sieve' is unknown"),
        ([OWN, "--arms", "sift", "sift"], "give each once"),
        ([OWN, "--arms", "tests.helpers.problems:absent"], "cannot be imported"),
        ([OWN, "--arms", "tests.helpers.problems:number"], "is a int"),
        (
            [OWN, "--arms", "tests.helpers.problems:headless"],
            "headless' cannot be",
        ),
        ([OWN, "--seeds", "1", "1"], "give at least one, each once"),
        ([OWN, "--budget", "soon"], "budget='soon' is not understood"),
        ([OWN, "--budget", "3u"], "fewer than its 4 evaluations"),
        ([OWN, "--budget", "5n"], "not enough for one update"),
        ([OWN, "--budget", "0.000001s"], "not enough for one update of arm 'baseline'"),
        ([OWN, "--set", "sift:lr"], "write ARM:key=value"),
        ([OWN, "--set", "sieve:lr=1"], "without 'sieve'"),
        ([OWN, "--set", "clop=1"], "raised TypeError"),
        (["resnet", "smoke", "--set", "clop=1"], "there is no such setting"),
        (["resnet", "smoke", "--set", "max_lr=high"], "give a float, like 0.01"),
        ([OWN, "--seed", "3"], "--seed is for single runs: here it is --seeds"),
        ([OWN, "--batch", "3"], "here it is the Problem's own batch"),
        ([OWN, "--turn", "0"], "turn=0"),
        (["resnet"], "name a preset after `sift compare resnet`: paper, small, smoke"),
        ([OWN, "--total", "2h"], "one of them"),
        ([OWN, "--budget", "total:9u"], "give the time of all runs together, e.g. 2h"),
        (["tests.helpers.problems:convolutional"], "or leave it out: --arms default finds a place"),
        (["tests.helpers.problems:deaf"], "batches(32) gave 16 samples in its first batch"),
        (["resnet", "smoke", "--data", "/no/such/data"], "cannot read images from"),
    ],
)
def test_mistakes_are_named_before_anything_runs(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    rest = ["--budget", "8u"] if "--budget" not in argv else []
    arms = ["--arms", "sift"] if "--arms" not in argv else []
    command = [*argv[:1], *argv[1:], *arms, *rest, "--evaluations", "4", "--out", str(out)]
    assert sift.main(["compare", *command]) == 2
    assert message in capsys.readouterr().err
    assert not list(out.glob("*/seed-*"))


def test_a_folder_that_cannot_be_used_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file" / "out") == 2
    assert "cannot write a comparison to" in capsys.readouterr().err
    (tmp_path / "comparison.json").write_text("{")
    assert run(tmp_path) == 2
    assert "comparison.json is damaged" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(tmp_path / "other") == 2
    assert "runs in one process" in capsys.readouterr().err
    assert sift.main(["compare"]) == 2
    assert "usage: sift compare" in capsys.readouterr().err


def test_words_become_a_comparison(tmp_path: Path) -> None:
    words = [OWN, "--out", str(tmp_path), "--budget", "8u", "--arms", "sift", "--seeds", "1", "2"]
    found = parse([*words, "--set", "sift:lr=0.5", "--sequential"])
    assert (found.budget, found.seeds, found.sequential) == ("8u", (1, 2), True)
    assert list(found.configs) == ["baseline", "random", "sift"]
    assert found.configs["sift"].options == {"lr": 0.5}
