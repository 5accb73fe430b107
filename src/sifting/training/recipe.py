"""Recipes: experiments that run at every size, by name or of one's own."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from sifting.rng import seed_all
from sifting.training.assemble import assemble, check_new
from sifting.training.config import OPERATIONAL, RunConfig, plain_settings
from sifting.training.launch import from_first, rank_and_world
from sifting.training.locks import locked
from sifting.training.problem import Problem
from sifting.training.rank_watch import watching
from sifting.training.run_folder import RunError, read_run

# by name; each is imported when it is asked for, since it brings tokenizers or transformers
RECIPES = {
    "bert": "sifting.recipes.bert:RECIPE",
    "gpt": "sifting.recipes.gpt:RECIPE",
    "resnet": "sifting.recipes.resnet:RECIPE",
}


class DataError(ValueError):
    """Data that cannot be trained on; the message names the row, file or split."""

    def __init__(self, message: str) -> None:
        # out of a worker process torch brings it after a traceback
        super().__init__(message.rsplit("DataError: ", 1)[-1].rstrip())


C = TypeVar("C", bound=RunConfig)
D = TypeVar("D")


@dataclass(frozen=True)
class Recipe(Generic[C, D]):
    """An experiment that can be run at every size.

    >>> from sifting.training.config import RunConfig
    >>> Recipe("mine", "", {"small": RunConfig()}, read=print, problem=print, updates=print,
    ...        data_settings=("corpus",))
    Traceback (most recent call last):
    ValueError: recipe 'mine' says that 'corpus' changes its data, and RunConfig has no such field

    Attributes:
        name: what follows `sift train`.
        about: what it does, for --help.
        presets: settings by name; they differ only in numbers.
        read: the data of some settings, read once for all arms and seeds.
        problem: the model and all that belongs to it, for one run.
        updates: how many updates the settings mean where they do not say.
        data_settings: the settings that `read` goes by. Runs that agree in them share their data.
    """

    name: str
    about: str
    presets: Mapping[str, C]
    read: Callable[[C], D]
    problem: Callable[[C, D], Problem]
    updates: Callable[[C, D], int]
    data_settings: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.presets:
            raise ValueError(f"recipe {self.name!r} has no presets: give it at least one")
        for config in self.presets.values():
            known = {field.name for field in fields(config)}
            wrong = next((name for name in self.data_settings if name not in known), None)
            if wrong is not None:
                raise ValueError(
                    f"recipe {self.name!r} says that {wrong!r} changes its data, and "
                    f"{type(config).__name__} has no such field"
                )

    def data_key(self, config: C) -> str:
        """The same for settings that have the same data."""
        return repr([(name, getattr(config, name)) for name in self.data_settings])


def find_recipe(name: str) -> Recipe[Any, Any]:
    """The recipe of a name.

    >>> find_recipe("resnet").name
    'resnet'

    Args:
        name: one of `RECIPES`, or `module:RECIPE` for one of your own.
    """
    if name not in RECIPES and ":" not in name:
        raise ValueError(
            f"recipe={name!r} is unknown: choose one of {', '.join(RECIPES)}, or a path to your own "
            "(module:RECIPE)"
        )
    found = resolve(RECIPES.get(name, name), called="recipe")
    if not isinstance(found, Recipe):
        raise ValueError(
            f"recipe={name!r} is a {type(found).__name__}, and must be a sifting.training.Recipe"
        )
    return found


def resolve(path: str, *, called: str) -> Any:
    """What a user's `module:attribute` names.

    Args:
        path: as the user wrote it.
        called: what the user calls it, for messages.
    """
    module = path.partition(":")[0]
    try:
        return pkgutil.resolve_name(path)
    except AttributeError as error:
        raise ValueError(f"{called}={path!r} is not there: {error}") from error
    except ModuleNotFoundError as error:
        if path in RECIPES.values() and not str(error.name).startswith("sifting"):
            raise  # an extra that is not installed: the command line names it
        raise _unimported(called, path, module, error) from error
    except Exception as error:  # whatever a user's module raises
        raise _unimported(called, path, module, error) from error


def _unimported(called: str, path: str, module: str, error: Exception) -> ValueError:
    # a module that is found, and fails inside, is not helped by another folder
    lost = isinstance(error, ModuleNotFoundError) and module.startswith(str(error.name))
    fix = "Run where it lies, or put its folder on PYTHONPATH" if lost else "It fails when imported"
    return ValueError(
        f"{called}={path!r}: {module!r} cannot be imported: {type(error).__name__}: {error}. {fix}"
    )


def update_size(config: RunConfig) -> int:
    """Samples that one update is made of, on all ranks together."""
    return config.batch * config.accumulate * rank_and_world()[1]


@dataclass(frozen=True)
class RunOutcome:
    """How a run ended.

    Attributes:
        status: as in `run.json`: "finished" or "stopped".
        stopped_by: name of the signal that stopped it.
        trained: whether it made any updates now; one that was finished already did not.
    """

    status: str
    stopped_by: str | None = None
    trained: bool = True


def run_recipe(
    recipe: Recipe[C, D],
    config: C,
    out: Path,
    *,
    resume: bool | Literal["auto"] = False,
    data: D | None = None,
    watch: Callable[[Mapping[str, Any]], None] | None = None,
    rank_timeout: float | None = None,
) -> RunOutcome:
    """Run one arm, or continue with it.

    Args:
        recipe: what to train.
        config: its settings.
        out: the run folder.
        resume: continue with the run that the folder holds; a finished one is left as it is. "auto" to
            begin where it holds none.
        data: of the settings, where it has been read already.
        watch: see `Engine`.
        rank_timeout: seconds after which a rank that hangs ends the run on all ranks; None for never.
    """
    if resume == "auto":
        resume = from_first(lambda: (out / "run.json").exists())
    if not resume:
        check_new(out)  # before the data is read, which may take long
    elif read_run(out).status == "finished":
        _check_finished(out, config)
        return RunOutcome("finished", trained=False)
    with locked(out, here=rank_and_world()[0] == 0):
        seed_all(config.seed)
        if data is None:
            data = recipe.read(config)
        updates = config.updates or recipe.updates(config, data)
        problem = recipe.problem(config, data)
        rank = rank_and_world()[0]
        if rank > 0:  # the weights are alike on all ranks; what dropout leaves out is not to be
            seed_all(config.seed, rank=rank)
        budget = {"budget": {"kind": "updates", "amount": updates}}
        engine = assemble(
            recipe.name, config, problem, out, updates=updates, resume=bool(resume), extra=budget
        )
        engine.watch = watch
        with watching(engine, rank_timeout, label=f"sift train {recipe.name}"):
            return RunOutcome(engine.run(), engine.stopped_by)


def train(recipe: Recipe[C, D], config: C, out: Path, **options: Any) -> str:
    """Run one arm, or continue with it; returns the status its folder ends with.

    Args:
        options: see `run_recipe`.
    """
    return run_recipe(recipe, config, out, **options).status


def _check_finished(out: Path, config: RunConfig) -> None:
    """Raise where a finished run is asked to continue with other settings, more updates for one."""
    then = read_run(out).config
    now = plain_settings(config)
    changed = [
        f"{name}: {then.get(name)!r} → {value!r}"
        for name, value in sorted(now.items())
        if name not in OPERATIONAL
        and value != then.get(name)
        and not (name == "updates" and value is None)  # the recipe's own number
    ]
    if changed:
        raise RunError(
            f"{out} holds a finished run of {then.get('updates')} updates, whose learning rate was planned "
            f"for as many; it cannot continue with other settings ({'; '.join(changed)}). Train again into "
            "another folder"
        )
