"""`sift compare TARGET [preset] --budget … --out DIR …`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import tyro

from sifting.cli.parsing import SharedOptions, parse_preset, refuse, usage
from sifting.compare.harness import Comparison, arm_configs, compare
from sifting.compare.live import tell
from sifting.compare.workload import FunctionWorkload, find_workload, import_from_here
from sifting.terminal import make_console, say
from sifting.training.engine import Diverged
from sifting.training.recipe import RECIPES
from sifting.training.run_folder import RunError
from sifting.training.signals import exit_code
from sifting.verdict.terminal import show

C = TypeVar("C")
USAGE = (
    f"sift compare {{{','.join(RECIPES)},module:function,module:RECIPE}} [PRESET] --out DIR "
    "{--budget 600s|2000u|64000n | --total 2h} …\n"
    "`sift compare WORKLOAD [PRESET] --help` lists the options"
)
LABEL = "sift compare"


@dataclass(frozen=True)
class CompareOptions(SharedOptions[C], Generic[C]):
    """What to compare and where to write."""

    arms: tuple[str, ...] = ("sift", "tuned")
    """Beside the baseline and random-keep: names, names at an exit (sift@3), or module:attribute."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Every arm is run with each."""
    budget: str | None = None
    """What each run may spend: 90s, 15m, 2h; 2000u (updates); 64000n (samples back-propagated); or
    baseline:2000u, the time that the baseline needs for so many updates."""
    total: str | None = None
    """In place of a budget: the time of all runs together (2h), of which each run has an equal part."""
    clock: Literal["wall", "cpu"] = "wall"
    """How operations are timed: by time that passes, or by time that the process computes, which a busy
    machine does not lengthen (one thread, no GPU)."""


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    words = list(argv)
    code = usage(USAGE, words)
    if code is not None:
        return code
    console = make_console()
    try:
        plan = parse(words)
        stopped, verdict = compare(plan, console)
    except (RunError, Diverged, ValueError, TypeError) as error:
        say(f"{LABEL}: {error}", error=True)
        return 2
    except KeyboardInterrupt:
        stopped, verdict = "KeyboardInterrupt", None
    if stopped is not None:
        say(f"{LABEL}: stopped by {stopped}; the same command goes on", error=True)
        return exit_code(stopped)
    assert verdict is not None
    show(verdict, console)
    tell(console, plan.out / "verdict.md")
    return 0


def parse(argv: list[str]) -> Comparison:
    """The comparison that some arguments mean."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("sift compare runs in one process: start it without torchrun")
    import_from_here()
    workload = find_workload(argv[0])
    preset, options = parse_preset(
        workload.presets,
        argv[1:],
        make=lambda config: CompareOptions(out=tyro.MISSING, config=config),
        prog=f"{LABEL} {argv[0]}",
        about="Arms × seeds under one budget, with a verdict.",
    )
    config = options.config
    wrong = {"arm": "--arms", "seed": "--seeds", "updates": "--budget"}
    if isinstance(workload, FunctionWorkload):
        wrong |= {"batch": "the Problem's own batch", "device": "the Problem's own device"}
    refuse(config, workload.presets[preset], wrong)
    if (options.budget is None) == (options.total is None):
        raise ValueError(
            "give what each run may spend (--budget 15m, 2000u, 64000n or baseline:2000u) or the time of all "
            "runs together (--total 2h), one of them"
        )
    return Comparison(
        workload,
        options.out,
        arm_configs(workload, config, options.arms, options.set, control=options.control),
        options.seeds,
        options.budget or f"total:{options.total}",
        options.turn,
        options.sequential,
        options.keep_finished,
        options.clock,
    )
