"""`sift compare TARGET [preset] --budget … --out DIR …`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import tyro
from rich.console import Console

from sifting.cli.parsing import SharedOptions, parse_preset, refuse, run_many
from sifting.compare.harness import Comparison, arm_configs, compare
from sifting.compare.live import tell
from sifting.compare.workload import FunctionWorkload, named_workload
from sifting.training.recipe import RECIPES
from sifting.verdict.terminal import show

C = TypeVar("C")
USAGE = (
    f"sift compare {{{','.join(RECIPES)},module:function,module:RECIPE}} [PRESET] --out DIR "
    "{--budget 600s|2000u|64000n | --total 2h} …\n"
    "`sift compare WORKLOAD [PRESET] --help` lists the options"
)
LABEL = "sift compare"
USUAL = ("sift", "tuned")  # arms where none are named


@dataclass(frozen=True)
class CompareOptions(SharedOptions[C], Generic[C]):
    """What to compare and where to write."""

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
    return run_many(argv, label=LABEL, text=USAGE, work=_run)


def _run(words: list[str], console: Console) -> str | None:
    plan = parse(words)
    stopped, verdict = compare(plan, console)
    if verdict is not None:
        show(verdict, console)
        tell(console, plan.out / "verdict.md")
    return stopped


def parse(argv: list[str]) -> Comparison:
    """The comparison that some arguments mean."""
    workload = named_workload(argv[0], command=LABEL)
    preset, options = parse_preset(
        workload.presets,
        argv[1:],
        make=lambda config: CompareOptions(
            out=tyro.MISSING, config=config, arms=USUAL, seeds=(0, 1, 2)
        ),
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
    named = any(word.split("=")[0] == "--arms" for word in argv)
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
        frozenset() if named else frozenset(USUAL),
    )
