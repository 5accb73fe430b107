"""`sift demo`: two small real tasks, trained plainly, by the paper's exit and by the autopilot.

Handwritten digits (8×8 pixels, from scikit-learn), once as they are and trained until they are fitted,
once with a fifth of the labels wrong. Every arm plans the same number of updates, its learning rate
decayed within them; the autopilot ends sooner by what its choosing gains. What it decided, and why, is
said beside what came of it. Then the theory's convex image: greedy SGD against SGD. All of it goes into a report.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from sifting.bench.tasks import digits
from sifting.bench.tasks.common import Data
from sifting.bench.tasks.fashion import with_random_labels
from sifting.bench.tasks.rows import TaskRows
from sifting.compare.harness import Comparison, arm_configs, compare
from sifting.compare.workload import FunctionWorkload, OwnConfig
from sifting.measure.stats import SiftingWarning
from sifting.report import Extra, collect, write_html
from sifting.terminal import make_console, say
from sifting.theory import LeastSquares, simulate
from sifting.theory.plots import plot_simulation
from sifting.training.problem import Problem
from sifting.training.run_folder import RunError, read_run
from sifting.training.signals import exit_code
from sifting.verdict.terminal import show

OUT = Path("sift-demo")
ARMS = ("sift", "auto")  # beside the baseline and random-keep
# wide layers, so that an update takes long enough for choosing to matter; as in most training
DEMO = replace(digits.FULL, width=512, batch=64, max_lr=2e-3, held_out=300)
UPDATES = 300
WRONG = 0.2  # share of the labels that are replaced at random in the second task
STEPS, RUNS, CHOICES = 10_000, 100, 8  # of the convex image


def problem(seed: int, *, wrong: float = 0.0) -> Problem:
    """The demo's task, as `sift compare sifting.cli.demo:problem` takes it.

    >>> problem(seed=0).batch
    64

    Args:
        seed: of the run.
        wrong: share of the training labels that are replaced at random.
    """
    config = replace(DEMO, seed=seed)
    data = digits.read(config)
    train, held_out = (_relabelled(rows, wrong) for rows in (data.train, data.held_out))
    return digits.problem(config, Data(train, held_out, data.test, data.classes))


def _relabelled(rows: TaskRows, share: float) -> TaskRows:
    """The same images, some of their labels replaced at random: also of what is held out, as one would have it."""
    pixels, labels = rows.tensors_N
    return TaskRows(pixels, with_random_labels(labels, share), ready=rows.ready)


TASKS: dict[str, tuple[str, Callable[..., Problem]]] = {
    "clean": ("8×8 digits", problem),
    "wrong": (
        f"the same, {WRONG:.0%} of the labels replaced at random",
        partial(problem, wrong=WRONG),
    ),
}


def convex(path: Path) -> str:
    """Draw greedy SGD beside SGD on least squares, as `sift theory gsgd` does, and say what is seen."""
    squares = LeastSquares(dim=20, distance=30.0, minority=0.1, shift=10.0)
    eta = 0.5 / squares.smoothness
    found = simulate(squares, K=STEPS, R=CHOICES, eta=eta, runs=RUNS, seed=0)
    plot_simulation(found, path)
    (greedy,) = (arm for arm in found.arms if arm != "SGD")
    until = found.crossover_measured(greedy)
    if until <= 0:
        seen = "is never ahead of SGD"
    elif until >= STEPS:
        seen = "is ahead of SGD from start to end"
    else:
        seen = (
            f"is ahead of SGD for {until:,.0f} steps, and behind from there on: it comes near the solution "
            "sooner, but not as near"
        )
    return (
        f"The theory's image: on least squares, mean of {RUNS} runs, greedy SGD, which trains on the "
        f"hardest of {CHOICES} samples at each step, {seen}."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run every arm with every seed, in turns, and print and draw what came out."""
    parser = argparse.ArgumentParser(prog="sift demo", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each arm (default: 5)")
    parser.add_argument(
        "--updates", type=int, default=UPDATES, help=f"of each run (default: {UPDATES})"
    )
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder (default: {OUT})")
    args = parser.parse_args(argv)
    if args.seeds < 2 or args.updates < 20:
        parser.error(
            f"--seeds {args.seeds} --updates {args.updates}: give at least 2 seeds and 20 updates"
        )
    try:
        return _run(args.out, args.seeds, args.updates)
    except RunError as error:
        say(f"sift demo: {error}", error=True)
        return 2


def _run(out: Path, seeds: int, updates: int) -> int:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on layers this small, threads cost more than they give
    console = make_console()
    caught: list[warnings.WarningMessage] = []
    try:
        for name, (about, build) in TASKS.items():
            workload = FunctionWorkload(f"demo: {about}", build)
            config = OwnConfig(
                warmup=0.1, evaluations=10, audit_every=10, checkpoint_every=f"{updates}u"
            )
            plan = Comparison(
                workload=workload,
                out=out / "runs" / name,
                configs=arm_configs(workload, config, ARMS, (), control=True),
                seeds=tuple(range(seeds)),
                budget=f"{updates}u",
            )
            console.print(
                f"{about}: {len(plan.configs)} arms × {seeds} seeds, {updates} updates of "
                f"{DEMO.batch} samples each; the arms take turns, so that a busy machine is busy for "
                "all of them"
            )
            with warnings.catch_warnings(record=True) as heard:
                warnings.simplefilter("always", SiftingWarning)
                stopped, verdict = compare(plan, console)
            caught += heard
            if stopped is not None or verdict is None:
                say(f"sift demo: stopped by {stopped}; continue with --out {out}", error=True)
                return exit_code(stopped)
            show(verdict, console)
            for line in decided(plan.out):
                console.print(line)
            console.print()
    finally:
        torch.set_num_threads(threads)
    for message in one_of_each([str(warning.message) for warning in caught]):
        console.print(f"during training the library warned: {message}\n")
    drawing = out / "gsgd.svg"
    about = convex(drawing)
    console.print(about)
    extra = Extra("Greedy SGD against SGD", about, drawing.read_bytes())
    report = write_html(collect([out / "runs"]), out / "report.html", extras=[extra])
    say(f"\nthe report, with every metric over time, is {report}")
    return 0


def one_of_each(messages: Sequence[str]) -> list[str]:
    """The first warning of every arm, and how many more it had.

    >>> one_of_each(["sift, seed 0: worse", "sift, seed 1: worse", "tuned, seed 0: slow"])
    ['sift, seed 0: worse (and 1 more of this arm)', 'tuned, seed 0: slow']
    """
    by_arm: dict[str, list[str]] = {}
    for message in dict.fromkeys(messages):
        by_arm.setdefault(message.partition(", seed")[0], []).append(message)
    return [
        found[0] + (f" (and {len(found) - 1} more of this arm)" if len(found) > 1 else "")
        for found in by_arm.values()
    ]


def decided(folder: Path) -> list[str]:
    """What the autopilot decided in each run of a comparison, in lines."""
    lines = []
    for path in sorted(folder.glob("**/config.json")):
        run = read_run(path.parent)
        if run.config.get("arm") != "auto":
            continue
        made = [record for record in run.metrics if record["kind"] == "decision"]
        changes = [record for record in made if record["changed"]]
        told = [f"from update {r['step']} on {_doing(r)}, since {r['why']}" for r in changes]
        if not told and made:
            told = [f"everything was trained, since {made[-1]['why']}"]
        updates = (run.summary or {}).get("updates")
        lines.append(
            f"autopilot, seed {run.config['seed']}: {'; '.join(told) or 'nothing to decide by'}"
            + ("" if updates is None else f"; it ended after {updates} updates")
        )
    return lines


def _doing(record: dict[str, object]) -> str:
    if record["ratio"] == 1:
        return "everything"
    return f"1 in {record['ratio']} by {record['scorer']}"
