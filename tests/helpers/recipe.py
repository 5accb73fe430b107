"""A user's own recipe, as `sift train tests.helpers.recipe:RECIPE` imports it."""

from __future__ import annotations

from dataclasses import dataclass

from sifting.training.config import RunConfig
from sifting.training.recipe import Recipe
from tests.helpers.problems import build


@dataclass(frozen=True)
class Mine(RunConfig):
    blow: int = 0
    samples: int = 256


RECIPE: Recipe[Mine, int] = Recipe(
    name="mine",
    about="a small net",
    presets={"tiny": Mine(updates=8, evaluations=2)},
    read=lambda config: config.samples,
    problem=lambda config, data: build(config.seed, blow=config.blow),
    updates=lambda config, data: data // config.batch,
    data_settings=("samples",),
)
OWN = "tests.helpers.recipe:RECIPE"
NUMBER = 7  # no recipe
