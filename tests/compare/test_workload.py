"""What is compared: a recipe by name, or a user's own function."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sifting.compare.workload import (
    FunctionWorkload,
    OwnConfig,
    RecipeWorkload,
    find_workload,
    import_from_here,
    parse_settings,
)
from tests.helpers import problems
from tests.helpers.recipe import RECIPE


def test_a_recipe_reads_its_data_once_for_the_settings_that_change_it() -> None:
    read: list[int] = []

    def reading(config: Any) -> int:
        read.append(config.samples)
        return int(config.samples)

    workload = RecipeWorkload(replace(RECIPE, read=reading))
    config = workload.presets["tiny"]
    for other in (config, replace(config, seed=3, arm="sift"), replace(config, samples=64)):
        workload.problem(other)
        workload.problem(other)
    assert read == [256, 64]
    assert workload.updates(config) == config.updates == 8
    assert workload.updates(replace(config, updates=None)) == 256 // config.batch


def test_settings_of_a_recipe_are_its_own_and_of_their_type() -> None:
    workload = RecipeWorkload(RECIPE)
    config = workload.presets["tiny"]
    changed = workload.with_settings(config, {"samples": 10, "warmup": 0})
    assert (changed.samples, changed.warmup) == (10, 0.0)
    assert isinstance(changed.warmup, float)
    for key, value, message in (
        ("lr", 0.1, r"--set lr=0.1: there is no such setting; choose among .*samples"),
        ("seed", 3, "there is no such setting"),
        ("samples", "many", "--set samples='many': give a int, like 256"),
    ):
        with pytest.raises(ValueError, match=message):
            workload.with_settings(config, {key: value})


def test_settings_of_a_users_function_are_common_ones_or_its_arguments() -> None:
    workload = FunctionWorkload("tests.helpers.problems:build", problems.build)
    config = workload.with_settings(OwnConfig(), {"lr": 0.5, "clip": 1.0})
    assert (config.clip, config.options) == (1.0, {"lr": 0.5})
    again = workload.with_settings(config, {"blow": 3})
    assert again.options == {"lr": 0.5, "blow": 3}
    assert workload.problem(config).optimizer.param_groups[0]["lr"] == 0.5
    with pytest.raises(ValueError, match=r"problems:build\(seed=0, clop=1\) raised TypeError"):
        workload.problem(replace(config, options={"clop": 1}))


def test_a_name_is_a_recipe_or_a_path() -> None:
    assert isinstance(find_workload("resnet"), RecipeWorkload)
    assert isinstance(find_workload("tests.helpers.recipe:RECIPE"), RecipeWorkload)
    assert isinstance(find_workload("tests.helpers.problems:build"), FunctionWorkload)


def test_modules_of_the_current_directory_are_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    import_from_here()
    import_from_here()
    assert sys.path.count(str(tmp_path)) == 1


def test_values_are_plain_python_and_arms_may_have_colons() -> None:
    found = parse_settings(["mine:half:lr=1e-3", "data=text", "clip=None"], ["mine:half"])
    assert found == {"mine:half": {"lr": 1e-3}, None: {"data": "text", "clip": None}}
