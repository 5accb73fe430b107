"""The command line of a recipe, made from the fields of its settings."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import tyro

from sifting.training.arms import ARMS

C = TypeVar("C")


@dataclass(frozen=True)
class Command(Generic[C]):
    """What to run and where to write."""

    out: Path
    """Run folder."""
    config: C
    resume: bool = False
    """Go on with the run in the folder; a finished one is left as it is."""


def parse(recipe: Any, argv: list[str]) -> Command[Any]:
    """The command that some arguments mean: a preset, and what differs from it."""
    presets = recipe.presets
    preset = argv.pop(0) if argv and argv[0] in presets else "smoke"
    kind = type(presets[preset])
    arms = "\n\n".join(f"{name}: {arm.about}." for name, arm in ARMS.items())
    about = f"{recipe.about}\n\nPresets: {', '.join(presets)}; here {preset}. Arms:\n\n{arms}"
    command: Command[Any] = tyro.cli(
        Command[kind],  # type: ignore[valid-type]
        default=Command(out=tyro.MISSING, config=presets[preset]),
        args=argv,
        prog=f"sift train {recipe.name} {preset}",
        description=about,
        config=(tyro.conf.OmitArgPrefixes,),
    )
    return command
