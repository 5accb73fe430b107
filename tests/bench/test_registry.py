"""The tasks by name."""

from __future__ import annotations

import pytest

from sifting.bench.registry import LANGUAGE, SIZES, TASKS, BenchTask, find_task, tasks, workload_of
from sifting.training.arms import ARMS
from sifting.training.recipe import find_recipe


def test_a_language_model_is_a_task_once_its_recipe_can_learn() -> None:
    for name, task in LANGUAGE.items():
        assert (name in tasks()) == (task.full in find_recipe(name).presets)


def test_every_task_is_a_recipe_with_both_sizes() -> None:
    for name, task in TASKS.items():
        recipe = workload_of(task)
        assert {task.preset(size) for size in SIZES} <= set(recipe.presets), name
        assert hasattr(recipe.presets[task.preset("full")], task.rate), name
        assert set(task.without) <= set(ARMS)


def test_what_is_unknown_is_named() -> None:
    with pytest.raises(ValueError, match="task='fashon' is unknown: choose among digits, fashion"):
        find_task("fashon")
    with pytest.raises(ValueError, match="size='huge': choose among full, smoke"):
        find_task("digits").preset("huge")


def test_a_users_own_problem_has_one_size() -> None:
    own = BenchTask("mine:build", "", own=True)
    assert {own.preset(size) for size in SIZES} == {""}
