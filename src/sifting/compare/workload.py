"""What is compared: a recipe by name, or a user's own `module:function`."""

from __future__ import annotations

import ast
import os
import sys
import traceback
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, Protocol

import tyro

from sifting.compare.adopting import adopted
from sifting.rng import RandomState
from sifting.training.config import RunConfig
from sifting.training.problem import Problem
from sifting.training.recipe import RECIPES, Recipe, find_recipe, resolve


class Workload(Protocol):
    """A problem that can be built again for every arm and seed."""

    @property
    def name(self) -> str:
        """What a user calls it."""

    @property
    def presets(self) -> Mapping[str, RunConfig]:
        """Settings by name; the only one of a user's own function is called ""."""

    def problem(self, config: RunConfig) -> Problem:
        """The problem of one run."""

    def with_settings(self, config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
        """The config with some values replaced, or an error that names the wrong one."""


@dataclass
class RecipeWorkload:
    """A recipe; its data is read once for all arms and seeds."""

    recipe: Recipe[Any, Any]
    cache: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def presets(self) -> Mapping[str, RunConfig]:
        return self.recipe.presets

    def problem(self, config: RunConfig) -> Problem:
        return self.recipe.problem(config, self.data(config))

    def data(self, config: RunConfig) -> Any:
        """The data of some settings."""
        key = self.recipe.data_key(config)  # reading may take minutes
        if key not in self.cache:
            self.cache[key] = self.recipe.read(config)
        return self.cache[key]

    def updates(self, config: RunConfig) -> int:
        """How many updates the settings mean."""
        return config.updates or self.recipe.updates(config, self.data(config))

    def with_settings(self, config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
        return replace(config, **{k: _fitting(config, k, v) for k, v in settings.items()})


@dataclass(frozen=True)
class OwnConfig(RunConfig):
    """Settings of a run of a user's own problem."""

    options: Annotated[dict[str, Any], tyro.conf.Suppress] = field(default_factory=dict)
    """Further arguments of the function that builds it."""


@dataclass
class FunctionWorkload:
    """A user's own `build(seed, **options)`: a Problem, a Trainer or a LightningModule."""

    name: str
    build: Callable[..., Any]
    trains: bool | None = None  # whether it gives a trainer; None while it was not called
    judged: bool = True  # whether what it gives is evaluated, and so needs the data for it
    _paces: dict[str, dict[str, Any]] = field(default_factory=dict)  # by the options
    _given: dict[int, Any] = field(default_factory=dict)  # parameters of problems, by their id

    @property
    def presets(self) -> Mapping[str, RunConfig]:
        return {"": OwnConfig()}

    def problem(self, config: RunConfig) -> Problem:
        made = self._made(config)[0]
        self._check_own(made, f"{self.name}(seed={config.seed})")
        return made

    def _check_own(self, made: Problem, called: str) -> None:
        """Raise where what is trained is an earlier problem's too: arms would train one another's weights."""
        trained = [p for p in made.model.parameters() if p.requires_grad]
        for parameter in trained:
            known = self._given.get(id(parameter))
            if known is not None and known() is parameter:
                raise ValueError(
                    f"{called} returned a {type(made.model).__name__} with parameters that an earlier call has "
                    "returned too, so that arms would train one and the same: make the model, the optimizer and "
                    "the trainer anew in each call"
                )
        self._given.update((id(parameter), weakref.ref(parameter)) for parameter in trained)

    def _made(self, config: RunConfig) -> tuple[Problem, dict[str, Any]]:
        """The problem of one run, and what a trainer that it was made of says of the run."""
        options = getattr(config, "options", {})
        called = (
            f"{self.name}(seed={config.seed}{''.join(f', {k}={v!r}' for k, v in options.items())})"
        )
        try:
            made = self.build(seed=config.seed, **options)
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            raise ValueError(
                f"{called} raised {type(error).__name__}: {error} ({frame.filename}, line {frame.lineno})"
            ) from error
        self.trains = not isinstance(made, Problem)
        if isinstance(made, Problem):
            return made, {}
        found = adopted(made, called, judged=self.judged)
        if found is None:
            raise ValueError(
                f"{called} returned a {type(made).__name__}, not a sifting Problem, nor a Trainer of Hugging "
                "Face's or TRL's, nor a LightningModule, alone or with a LightningDataModule"
            )
        return found

    def with_settings(self, config: RunConfig, settings: Mapping[str, Any]) -> RunConfig:
        assert isinstance(config, OwnConfig)
        common = {f.name for f in fields(RunConfig)}
        own = {k: _fitting(config, k, v) for k, v in settings.items() if k in common}
        options = {k: v for k, v in settings.items() if k not in common}
        made = replace(config, **own, options={**config.options, **options})
        return replace(made, **self._pace(made, given=own))

    def planned(self, config: RunConfig) -> int | None:
        """Updates that a trainer was made for; None where it does not say, and for a `Problem`."""
        return config.updates or self._said(config).get("updates")

    def _pace(self, config: OwnConfig, given: Mapping[str, Any]) -> dict[str, Any]:
        """What a trainer says of accumulation, clipping and precision, where the user does not."""
        plain = OwnConfig()
        return {
            name: value
            for name, value in self._said(config).items()
            if name not in given
            and name != "updates"  # a budget has its own
            and getattr(config, name) == getattr(plain, name)
        }

    def _said(self, config: RunConfig) -> dict[str, Any]:
        key = repr(getattr(config, "options", {}))
        if key not in self._paces:
            streams = RandomState.now()
            self._paces[key] = self._made(config)[1] if self.trains is not False else {}
            streams.restore()
        return self._paces[key]


def find_workload(name: str) -> RecipeWorkload | FunctionWorkload:
    """The workload of a name: a recipe's, `module:function` or `module:RECIPE`.

    >>> find_workload("resnet").name
    'resnet'

    Args:
        name: as on the command line; modules are looked for in the current directory too.
    """
    if name not in RECIPES and ":" not in name:
        raise ValueError(
            f"workload={name!r} is unknown: choose a recipe ({', '.join(RECIPES)}) or a path to your own "
            "function or recipe (module:function, module:RECIPE)"
        )
    if name in RECIPES:
        return RecipeWorkload(find_recipe(name))
    import_from_here()
    found = resolve(name, called="workload")
    if isinstance(found, Recipe):
        return RecipeWorkload(found)
    if not callable(found):
        raise ValueError(
            f"workload={name!r} is a {type(found).__name__}, and must be a function or a Recipe: "
            "def build(seed) -> sifting.training.Problem"
        )
    return FunctionWorkload(name, found)


def named_workload(name: str, *, command: str) -> RecipeWorkload | FunctionWorkload:
    """What a command is given to train, which may be in the current folder.

    Args:
        name: see `find_workload`.
        command: of one process, for a message to those who start it under torchrun.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError(f"{command} runs in one process: start it without torchrun")
    import_from_here()
    return find_workload(name)


def import_from_here() -> None:
    """Let modules of the current directory be imported, as under `python -m`."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def parse_settings(given: list[str], arms: list[str]) -> dict[str | None, dict[str, Any]]:
    """Settings of each arm from "ARM:key=value", of all arms from "key=value" under None.

    >>> parse_settings(["sift:max_lr=0.01", "clip=1.0"], ["sift"])
    {'sift': {'max_lr': 0.01}, None: {'clip': 1.0}}
    """
    found: dict[str | None, dict[str, Any]] = {}
    for text in given:
        left, equals, value = text.partition("=")
        arm, colon, key = left.rpartition(":")
        if not equals or not key.isidentifier():
            raise ValueError(
                f"--set {text!r} is not understood: write ARM:key=value, or key=value for all"
            )
        if colon and arm not in arms:
            raise ValueError(f"--set {text!r}: the arms are {', '.join(arms)}, without {arm!r}")
        try:
            plain = ast.literal_eval(value)
        except (SyntaxError, ValueError):
            plain = value
        found.setdefault(arm if colon else None, {})[key] = plain
    return found


def _fitting(config: RunConfig, key: str, value: Any) -> Any:
    """A value for a field of a config, of the field's type."""
    names = [f.name for f in fields(config)]
    if key not in names or key in ("arm", "seed", "updates", "options"):
        known = ", ".join(n for n in names if n not in ("arm", "seed", "updates", "options"))
        raise ValueError(f"--set {key}={value!r}: there is no such setting; choose among {known}")
    now = getattr(config, key)
    if isinstance(now, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if now is not None and type(value) is not type(now):
        raise ValueError(f"--set {key}={value!r}: give a {type(now).__name__}, like {now!r}")
    return value
