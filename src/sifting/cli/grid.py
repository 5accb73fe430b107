"""`sift grid resnet [preset] --out DIR …`: the paper's tables, in one command."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro

from sifting.cli.compare import console_of, preset_of, refuse
from sifting.compare.grid import Grid, Pictured, run_grid
from sifting.compare.harness import configs_of
from sifting.compare.tables import NOTE
from sifting.compare.workload import RecipeTarget, find_target, import_from_here
from sifting.training.engine import Diverged
from sifting.training.run_folder import RunError

C = TypeVar("C")
LABEL = "sift grid"
RECIPES = ("resnet",)
PAPER = ("uoft-cs/cifar100", "ethz/food101@224")


@dataclass(frozen=True)
class Options(Generic[C]):
    """What to run and where to write."""

    out: Path
    """Folder of the grid; give the same to go on with one."""
    config: C
    datasets: tuple[str, ...] = ()
    """Sources as --data takes them, each with another side than the preset's after an @
    (ethz/food101@224); --data alone for one. The preset "paper" has CIFAR-100 and Food-101."""
    arms: tuple[str, ...] = ("sift", "sift-last")
    """Beside the baseline and random-keep."""
    max_lrs: tuple[float, ...] = (5e-2, 1e-2, 5e-3, 1e-3)
    """Peaks of the one-cycle schedule."""
    seeds: tuple[int, ...] = (0,)
    """Every arm and learning rate is run with each."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Setting of one arm (sift:weight_decay=0.001) or of all; may be given often."""
    control: bool = True
    """Whether random-keep is run."""
    turn: int | None = None
    """Updates an arm makes before it is another one's turn; by default some seconds' worth."""
    sequential: bool = False
    """One run after the other, so that one model is in memory at a time."""


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    argv = list(argv)
    if not argv or argv[0] not in RECIPES:
        asked = bool(argv) and argv[0] in ("-h", "--help")
        wanted = f"{LABEL}: no grid for {argv[0]!r}; " if argv and not asked else ""
        print(
            f"{wanted}usage: sift grid {{{','.join(RECIPES)}}} [preset] --out DIR …",
            file=sys.stdout if asked else sys.stderr,
        )
        return 0 if asked else 2
    console = console_of()
    try:
        grid = parse(argv)
        stopped, tables = run_grid(grid, console)
    except (RunError, Diverged, ValueError, TypeError) as error:
        print(f"{LABEL}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        stopped, tables = "KeyboardInterrupt", []
    if stopped is not None:
        print(f"{LABEL}: stopped by {stopped}; the same command goes on", file=sys.stderr)
        return 130
    for table in tables:
        console.print(table.rich())
    console.print(NOTE, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{grid.out / 'tables.md'}", markup=False, highlight=False)
    return 0


def parse(argv: list[str]) -> Grid:
    """The grid that some arguments mean."""
    import_from_here()  # arms may be the user's own
    target = find_target(argv[0])
    assert isinstance(target, RecipeTarget)
    preset, rest = preset_of(target, argv)
    base = target.presets[preset]
    kind = type(base)
    options: Options[Any] = tyro.cli(
        Options[kind],  # type: ignore[valid-type]
        default=Options(out=tyro.MISSING, config=base),
        args=rest,
        prog=f"sift grid {argv[0]} {preset}",
        description=str(__doc__),
        config=(tyro.conf.OmitArgPrefixes,),
    )
    config = options.config
    refuse(config, base, {"arm": "--arms", "seed": "--seeds", "max_lr": "--max-lrs"})
    given = options.datasets
    if not given:
        paper = preset == "paper" and config.data == base.data  # type: ignore[attr-defined]
        given = PAPER if paper else (f"{config.data}@{config.side}",)
    return Grid(
        target,
        options.out,
        configs_of(target, config, options.arms, options.set, control=options.control),
        tuple(Pictured.parse(text, side=config.side) for text in given),
        options.max_lrs,
        options.seeds,
        options.turn,
        options.sequential,
    )
