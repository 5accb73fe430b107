"""Every task trains at its smallest size, on whatever data is there."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from sifting.bench.registry import TASKS
from sifting.bench.tasks.common import TaskConfig, find_data, share_of_peak
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


def test_the_learning_rate_rises_for_a_tenth_and_ends_at_nothing() -> None:
    rates = [share_of_peak(step, 100) for step in range(101)]
    assert rates[9] == rates[10] == 1.0
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.0)


def test_data_is_looked_for_in_ones_own_folder_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own" / "cifar10").mkdir(parents=True)
    (tmp_path / "package").mkdir()
    monkeypatch.setenv("SIFT_DATA", str(tmp_path / "own"))
    assert find_data("cifar10", str(tmp_path / "package")) == tmp_path / "own" / "cifar10"
    assert find_data("other", str(tmp_path / "package")) == tmp_path / "package"
    monkeypatch.delenv("SIFT_DATA")
    assert find_data("cifar10") is None


@pytest.mark.parametrize("wrong", [{"length": 0}, {"samples": 0}, {"max_lr": 0.0}])
def test_settings_that_mean_nothing_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}=0"):
        TaskConfig(**wrong)  # type: ignore[arg-type]
