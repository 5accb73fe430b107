"""`sift compare TARGET [preset] --budget … --out DIR …`."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar

import tyro
from rich.console import Console

from sifting.cli.train import RECIPES
from sifting.compare.harness import Plan, compare, configs_of
from sifting.compare.workload import FunctionTarget, Target, find_target, import_from_here
from sifting.training.arms import ARMS
from sifting.training.engine import Diverged
from sifting.training.recipe import Common
from sifting.training.run_folder import RunError
from sifting.verdict.terminal import show

C = TypeVar("C")
USAGE = (
    f"sift compare {{{','.join(RECIPES)},module:function}} [preset] --budget 600s|2000u|64000n "
    "--out DIR …\n`sift compare TARGET --help` says what a target takes"
)
LABEL = "sift compare"
WIDTH = 140  # of tables in a log file


@dataclass(frozen=True)
class Options(Generic[C]):
    """What to compare and where to write."""

    out: Path
    """Folder of the comparison; give the same to go on with one."""
    budget: str
    """What each arm may spend: 90s, 15m, 2h; 2000u (updates); 64000n (samples back-propagated); or
    baseline:2000u, the time that the baseline needs for so many updates."""
    config: C
    arms: tuple[str, ...] = ("sift", "tuned")
    """Beside the baseline and random-keep: names, names at an exit (sift@3), or module:attribute."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Every arm is run with each."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """Setting of one arm (sift:max_lr=0.005) or of all (max_lr=0.005); may be given often."""
    control: bool = True
    """Whether random-keep is run: what it gains too is not due to selection."""
    turn: int | None = None
    """Updates an arm makes before it is another one's turn; by default some seconds' worth."""
    sequential: bool = False
    """One run after the other, so that one model is in memory at a time."""


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    argv = list(argv)
    if not argv or argv[0].startswith("-"):
        asked = bool(argv) and argv[0] in ("-h", "--help")
        print(f"usage: {USAGE}", file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    console = console_of()
    try:
        plan = parse(argv)
        stopped, verdict = compare(plan, console)
    except (RunError, Diverged, ValueError, TypeError) as error:
        print(f"{LABEL}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        stopped, verdict = "KeyboardInterrupt", None
    if stopped is not None:
        print(f"{LABEL}: stopped by {stopped}; the same command goes on", file=sys.stderr)
        return 130
    assert verdict is not None
    show(verdict, console)
    console.print(f"{plan.out / 'verdict.md'}", markup=False, highlight=False)
    return 0


def parse(argv: list[str]) -> Plan:
    """The plan that some arguments mean."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("sift compare runs in one process: start it without torchrun")
    import_from_here()
    target = find_target(argv[0])
    preset, rest = preset_of(target, argv)
    base = target.presets[preset]
    kind = type(base)
    arms = "\n\n".join(f"{name}: {arm.about}." for name, arm in ARMS.items())
    options: Options[Any] = tyro.cli(
        Options[kind],  # type: ignore[valid-type]
        default=Options(out=tyro.MISSING, budget=tyro.MISSING, config=base),
        args=rest,
        prog=f"sift compare {argv[0]} {preset}".rstrip(),
        description=f"Arms × seeds under one budget, with a verdict. Arms:\n\n{arms}",
        config=(tyro.conf.OmitArgPrefixes,),
    )
    config = options.config
    wrong = {"arm": "--arms", "seed": "--seeds", "updates": "--budget"}
    if isinstance(target, FunctionTarget):
        wrong |= {"batch": "the Problem's own batch", "device": "the Problem's own device"}
    refuse(config, base, wrong)
    return Plan(
        target,
        options.out,
        configs_of(target, config, options.arms, options.set, control=options.control),
        options.seeds,
        options.budget,
        options.turn,
        options.sequential,
    )


def console_of() -> Console:
    """A console, wide enough for tables where it is a file."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDTH)


def preset_of(target: Target, argv: list[str]) -> tuple[str, list[str]]:
    """The preset that follows the target, or the one for trying things out; and what is left."""
    presets, rest = target.presets, argv[1:]
    if rest and not rest[0].startswith("-"):
        preset = rest.pop(0)
        if preset not in presets or not preset:
            known = ", ".join(filter(None, presets)) or "none"
            raise ValueError(f"{argv[0]} has no preset {preset!r}; it has: {known}")
        return preset, rest
    return next((name for name in ("", "smoke") if name in presets), next(iter(presets))), rest


def refuse(config: Common, base: Common, instead: Mapping[str, str]) -> None:
    """Raise where an option of single runs was given, and say what stands for it here."""
    for name, other in instead.items():
        if getattr(config, name) != getattr(base, name):
            raise ValueError(f"--{name.replace('_', '-')} is for single runs: here it is {other}")
