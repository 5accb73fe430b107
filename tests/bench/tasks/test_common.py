"""Every task trains at its smallest size, on whatever data is there."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from sifting.bench.registry import TASKS
from sifting.training.recipe import DataError, Recipe, find_recipe, run_recipe

SMALL = {name: find_recipe(task.recipe) for name, task in TASKS.items()}


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What a machine without any of the data sees."""
    monkeypatch.setenv("SIFT_DATA", str(tmp_path / "none"))
    monkeypatch.setattr("sifting.bench.tasks.fashion.PACKAGE", str(tmp_path / "none"))


@pytest.mark.parametrize("name", TASKS)
def test_a_task_trains_and_is_judged_on_held_out_samples(name: str, tmp_path: Path) -> None:
    recipe = SMALL[name]
    config = replace(recipe.presets["smoke"], arm="infobatch", updates=3, evaluations=1)
    data = recipe.read(config)
    problem = recipe.problem(config, data)
    assert problem.held_out is not None
    trained = {tuple(map(float, row.flatten()[:40])) for row in data.train.tensors_N[0][:50]}
    assert len(trained) > 1, "all samples are alike"
    run_recipe(recipe, config, tmp_path / "run", data=data)
    final = json.loads((tmp_path / "run" / "summary.json").read_text())["final"]
    assert math.isfinite(final[problem.metric])
    assert math.isfinite(final[f"held_out_{problem.metric}"])


@pytest.mark.parametrize("name", ["fashion", "cifar", "debian", "tagging"])
def test_the_whole_task_refuses_what_stands_in(name: str) -> None:
    recipe: Recipe = SMALL[name]
    with pytest.raises(DataError, match="is not installed: "):
        recipe.read(recipe.presets["full"])


def test_what_stands_in_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    SMALL["fashion"].read(SMALL["fashion"].presets["smoke"])
    assert "scikit-learn's digits stands in" in capsys.readouterr().err


@pytest.mark.parametrize("name", TASKS)
def test_sizes_differ_in_numbers_alone(name: str) -> None:
    full, smoke = SMALL[name].presets["full"], SMALL[name].presets["smoke"]
    assert type(full) is type(smoke)
    assert smoke.length < full.length
    assert not full.stand_in
