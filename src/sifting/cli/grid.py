"""`sift grid resnet PRESET --out DIR …`: the paper's tables, in one command."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import tyro
from rich.console import Console

from sifting.cli.parsing import SharedOptions, parse_preset, refuse, run_many
from sifting.compare.grid import Grid, ImageSource, run_grid
from sifting.compare.harness import arm_configs
from sifting.compare.live import tell
from sifting.compare.tables import NOTE
from sifting.compare.workload import RecipeWorkload, named_workload

C = TypeVar("C")
LABEL = "sift grid"
RECIPES = ("resnet",)
USAGE = f"sift grid {{{','.join(RECIPES)}}} PRESET --out DIR …"
PAPER = ("uoft-cs/cifar100", "ethz/food101@224")


@dataclass(frozen=True)
class GridOptions(SharedOptions[C], Generic[C]):
    """What to run and where to write."""

    datasets: tuple[str, ...] = ()
    """Sources as --data takes them, each with another side than the preset's after an @
    (ethz/food101@224); --data alone for one. The preset "paper" has CIFAR-100 and Food-101."""
    max_lrs: tuple[float, ...] = (5e-2, 1e-2, 5e-3, 1e-3)
    """Peaks of the one-cycle schedule."""


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return run_many(argv, label=LABEL, text=USAGE, work=_run)


def _run(words: list[str], console: Console) -> str | None:
    grid = parse(words)
    stopped, tables = run_grid(grid, console)
    if stopped is None:
        for table in tables:
            table.show(console)
        tell(console, NOTE)
        tell(console, grid.out / "tables.md")
    return stopped


def parse(argv: list[str]) -> Grid:
    """The grid that some arguments mean."""
    if argv[0] not in RECIPES:
        raise ValueError(f"there is no grid for {argv[0]!r}; usage: {USAGE}")
    workload = named_workload(argv[0], command=LABEL)  # arms may be the user's own
    assert isinstance(workload, RecipeWorkload)
    preset, options = parse_preset(
        workload.presets,
        argv[1:],
        make=lambda config: GridOptions(
            out=tyro.MISSING, config=config, arms=("sift", "sift-last"), seeds=(0,)
        ),
        prog=f"{LABEL} {argv[0]}",
        about=str(__doc__),
    )
    base = workload.presets[preset]
    config = options.config
    refuse(config, base, {"arm": "--arms", "seed": "--seeds", "max_lr": "--max-lrs"})
    given = options.datasets
    if not given:
        paper = preset == "paper" and config.data == base.data  # type: ignore[attr-defined]
        given = PAPER if paper else (f"{config.data}@{config.side}",)
    return Grid(
        workload,
        options.out,
        arm_configs(workload, config, options.arms, options.set, control=options.control),
        tuple(ImageSource.parse(text, side=config.side) for text in given),
        options.max_lrs,
        options.seeds,
        options.turn,
        options.sequential,
        options.keep_finished,
    )
