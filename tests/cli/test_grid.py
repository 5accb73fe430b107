"""`sift grid`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sifting.cli import main as sift
from sifting.compare.grid import ImageSource
from tests.helpers.comparisons import measure_briefly

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")


TINY = ["--updates", "8", "--evaluations", "2", "--batch", "20", "--audit-every", "4"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_briefly(monkeypatch)


def grid(out: Path, *options: str) -> int:
    return sift.main(["grid", "resnet", "smoke", "--out", str(out), *TINY, *options])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-lrs", "0.1", "0.1"], "max_lrs=(0.1, 0.1): give at least one, each once"),
        (["--max-lrs", "-1"], "give numbers above 0"),
        (["--max-lrs", "0.01", "0.010000001"], "two would be written to one folder"),
        (["--datasets", "digits@big"], "after the @ give the images' side"),
        (["--datasets", "a/digits", "b/digits"], "two would be written to one folder"),
        (["--max-lr", "0.1"], "--max-lr is for single runs: here it is --max-lrs"),
        (["--data", "/no/such/data"], "cannot read images from '/no/such/data'"),
    ],
)
def test_mistakes_are_named(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert grid(tmp_path, *options) == 2
    assert message in capsys.readouterr().err
    assert sift.main(["grid", "bert"]) == 2
    assert "no grid for 'bert'" in capsys.readouterr().err


def test_an_arm_of_the_current_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sifting.cli.grid import parse

    (tmp_path / "arms_of_a_grid.py").write_text('half = {"exit": 1, "score": "loss"}\n')
    elsewhere = [path for path in sys.path if path != ""]  # as under the installed command
    monkeypatch.setattr(sys, "path", elsewhere)
    monkeypatch.chdir(tmp_path)
    argv = ["resnet", "smoke", "--out", "x", "--arms", "arms_of_a_grid:half"]
    assert "arms_of_a_grid:half" in parse(argv).configs


def test_the_papers_data_sets_are_the_papers_presets(tmp_path: Path) -> None:
    from sifting.cli.grid import parse

    found = parse(["resnet", "paper", "--out", str(tmp_path)])
    assert found.datasets == (ImageSource("uoft-cs/cifar100", 32), ImageSource("ethz/food101", 224))
    assert found.max_lrs == (5e-2, 1e-2, 5e-3, 1e-3)
    assert [data.title for data in found.datasets] == ["CIFAR-100", "Food-101"]
    assert parse(["resnet", "paper", "--out", "x", "--data", "mine"]).datasets == (
        ImageSource("mine", 32),
    )


def test_it_runs_in_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert grid(tmp_path / "out") == 2
    assert "sift grid runs in one process: start it without torchrun" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
