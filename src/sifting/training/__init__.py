"""Training a problem with an arm, into a run folder.

from sifting.training import Problem, read_run, to_writer
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sifting.training.arms import Arm
    from sifting.training.config import RunConfig
    from sifting.training.loggers import scalars, to_writer
    from sifting.training.problem import Problem
    from sifting.training.recipe import DataError, Recipe
    from sifting.training.run_folder import Run, RunError, read_run

# what is public, and where it is; run folders are read without torch
_PUBLIC = {
    "Arm": "arms",
    "DataError": "recipe",
    "Problem": "problem",
    "Recipe": "recipe",
    "Run": "run_folder",
    "RunConfig": "config",
    "RunError": "run_folder",
    "read_run": "run_folder",
    "scalars": "loggers",
    "to_writer": "loggers",
}
__all__ = [
    "Arm",
    "DataError",
    "Problem",
    "Recipe",
    "Run",
    "RunConfig",
    "RunError",
    "read_run",
    "scalars",
    "to_writer",
]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PUBLIC[name]}"), name)
