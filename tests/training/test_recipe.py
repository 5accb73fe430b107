from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sifting.cli import train as cli
from sifting.training.config import RunConfig
from sifting.training.recipe import RECIPES, find_recipe
from sifting.training.run_folder import read_run
from tests.helpers import recipe
from tests.helpers.recipe import OWN, RECIPE, Mine


def test_a_recipe_of_ones_own_is_trained_by_its_path(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert cli.main([OWN, "tiny", "--out", str(out), "--seed", "3"]) == 0
    run = read_run(out)
    assert (run.status, run.config["recipe"], run.config["seed"]) == ("finished", "mine", 3)
    assert "finished after 8 updates: accuracy 0." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["alexnet"], "recipe='alexnet' is unknown: choose one of bert, gpt, resnet"),
        ([OWN], f"name a preset after `sift train {OWN}`: tiny"),
        ([OWN, "--out", "x"], f"name a preset after `sift train {OWN}`: tiny"),
        ([OWN, "huge", "--out", "x"], "has no preset 'huge'; it has: tiny"),
        (["tests.helpers.recipe:ABSENT", "tiny"], "is not there"),
        (["tests.helpers.recipe:NUMBER", "tiny"], "is a int, and must be a sifting.training"),
        (["no_such_module:RECIPE", "tiny"], "'no_such_module' cannot be imported"),
        (["resnet", "--out", "x"], "name a preset after `sift train resnet`: paper, small, smoke"),
    ],
)
def test_mistakes_are_named(
    argv: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(argv) == 2
    assert message in capsys.readouterr().err


def test_a_seed_decides_what_a_recipe_draws_from_any_global_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []

    def drawing(config: Mine, data: int) -> Any:
        found.append((random.random(), np.random.rand(), float(torch.rand(()))))  # noqa: NPY002
        return RECIPE.problem(config, data)

    def reading(config: Mine) -> int:
        found.append((random.random(), np.random.rand(), float(torch.rand(()))))  # noqa: NPY002
        return RECIPE.read(config)

    monkeypatch.setattr(recipe, "RECIPE", replace(RECIPE, read=reading, problem=drawing))
    for name in ("one", "two"):
        random.random(), np.random.rand(), torch.rand(())  # noqa: NPY002
        assert cli.main([OWN, "tiny", "--out", str(tmp_path / name), "--seed", "3"]) == 0
    assert found[:2] == found[2:]


def test_a_command_that_fails_leaves_no_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(config: Mine) -> int:
        raise ValueError("no such data")

    monkeypatch.setattr(recipe, "RECIPE", replace(RECIPE, read=unreadable))
    out = tmp_path / "deep" / "run"
    assert cli.main([OWN, "tiny", "--out", str(out)]) == 2
    assert "no such data" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_going_on_with_a_finished_run_says_what_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "run")]
    assert cli.main([OWN, "tiny", *out]) == 0
    before = (tmp_path / "run" / "run.json").read_bytes()
    capsys.readouterr()
    assert cli.main([OWN, "tiny", *out, "--resume", "--checkpoint-every", "3u"]) == 0
    assert "nothing to do: the run finished after 8 updates" in capsys.readouterr().out
    assert cli.main([OWN, "tiny", *out, "--resume", "--updates", "60"]) == 2
    said = capsys.readouterr().err
    assert "holds a finished run of 8 updates" in said
    assert "(updates: 8 → 60). Train again into another folder" in said
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_a_device_that_is_not_there_is_named_before_the_data_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "run_recipe", lambda *a, **k: pytest.fail("the data is read"))
    assert cli.main(["bert", "smoke", "--device", "cuda:99", "--out", f"{tmp_path}/run"]) == 2
    assert "device='cuda:99' cannot be used here" in capsys.readouterr().err


class Watched:
    """A config that notes which of its settings are asked for."""

    def __init__(self, config: RunConfig) -> None:
        self.config, self.asked = config, set[str]()

    def __getattr__(self, name: str) -> Any:
        self.asked.add(name)
        return getattr(self.config, name)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_reads_its_data_by_the_settings_it_declares_and_by_no_others(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIFT_CACHE", str(tmp_path))
    recipe = find_recipe(name)
    watched = Watched(recipe.presets["smoke"])
    recipe.read(watched)
    assert watched.asked == set(recipe.data_settings)
    assert watched.asked <= {field.name for field in fields(watched.config)}


def test_comparing_a_problem_of_ones_own_loads_no_recipe() -> None:
    code = (
        "import sys; from sifting.cli import compare; "
        "compare.parse(['tests.helpers.problems:build', '--out', 'x', '--budget', '9u']); "
        "loaded = [m for m in sys.modules if m.startswith('sifting.recipes')]; "
        "assert not loaded, loaded; assert 'transformers' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_run_folders_are_read_without_torch() -> None:
    code = (
        "import sys; from sifting.training import read_run, to_writer, scalars, RunError; "
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_module_that_fails_inside_is_not_sought_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "fails_inside.py").write_text("from sifting import Absent")
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["fails_inside:RECIPE", "tiny"]) == 2
    said = capsys.readouterr().err
    assert "cannot import name 'Absent'" in said
    assert "PYTHONPATH" not in said
    assert cli.main(["no_such_module:RECIPE", "tiny"]) == 2
    assert "put its folder on PYTHONPATH" in capsys.readouterr().err
