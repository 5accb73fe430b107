"""`sift demo`: one small real task, trained with and without sifting, and an honest verdict.

Handwritten digits (8×8 pixels, from scikit-learn) and a small residual network; every arm makes
the same number of updates, its learning rate decayed within them. Beside it, the paper's convex
image: greedy SGD against SGD. Both go into a report.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

from sifting.compare.harness import Comparison, arm_configs, compare
from sifting.compare.workload import FunctionWorkload, OwnConfig
from sifting.measure.stats import SiftingWarning
from sifting.report import Extra, collect, write_html
from sifting.terminal import make_console, say
from sifting.theory import LeastSquares, simulate
from sifting.theory.plots import plot_simulation
from sifting.training.problem import Problem
from sifting.training.run_folder import RunError
from sifting.training.signals import exit_code
from sifting.verdict.terminal import show

BATCH = 32
OUT = Path("sift-demo")
ARMS = ("sift-last", "sift", "default")  # beside the baseline and random-keep
STEPS, RUNS, CHOICES = 10_000, 100, 8  # of the convex image


class Residual(nn.Module):
    """A block that keeps its input's shape, so that the head fits after any of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


class DigitBatches:
    """Shuffled batches of one epoch, the last incomplete one left out."""

    drop_last = True

    def __init__(self, x: Tensor, y: Tensor, size: int, seed: int) -> None:
        self.dataset, self.batch_size = (x, y), size
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.dataset[0]) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.dataset
        order = torch.randperm(len(x), generator=self.generator)
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            rows = order[start : start + self.batch_size]
            yield x[rows], y[rows]


def problem(seed: int) -> Problem:
    """The demo's task, as `sift compare sifting.cli.demo:problem` takes it.

    >>> problem(seed=0).batch
    32
    """
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    train, test = order[:1200], order[1200:]
    torch.manual_seed(seed)
    blocks = nn.Sequential(*[Residual(64) for _ in range(6)])
    model = nn.Sequential(nn.Linear(64, 64), blocks, nn.LayerNorm(64), nn.Linear(64, 10))

    def evaluate(model: nn.Module) -> dict[str, float]:
        model.eval()
        with torch.no_grad():
            return {"accuracy": float((model(x[test]).argmax(dim=1) == y[test]).double().mean())}

    return Problem(
        model=model,
        batches=lambda size: DigitBatches(x[train], y[train], size, seed),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        evaluate=evaluate,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01),
        schedule=lambda optimizer, updates: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, max_lr=3e-3, total_steps=updates
        ),
        batch=BATCH,
        exit=1,
    )


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
        "--updates", type=int, default=600, help="updates of each run (default: 600)"
    )
    parser.add_argument("--out", type=Path, default=OUT, help=f"folder (default: {OUT})")
    args = parser.parse_args(argv)
    if args.seeds < 2 or args.updates < 20:
        parser.error(f"--seeds {args.seeds} --updates {args.updates}: give at least 2 and 20")
    try:
        return _run(args.out, args.seeds, args.updates)
    except RunError as error:
        say(f"sift demo: {error}", error=True)
        return 2


def _run(out: Path, seeds: int, updates: int) -> int:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # on layers this small, threads cost more than they give
    console = make_console()
    workload = FunctionWorkload("sifting.cli.demo:problem", problem)
    config = OwnConfig(warmup=0.1, evaluations=10, audit_every=10)
    plan = Comparison(
        workload=workload,
        out=out / "runs",
        configs=arm_configs(workload, config, ARMS, (), control=True),
        seeds=tuple(range(seeds)),
        budget=f"{updates}u",
    )
    console.print(
        f"8×8 digits, {len(plan.configs)} arms × {seeds} seeds, {updates} updates of {BATCH} samples each; "
        "the arms take turns, so that a busy machine is busy for all of them"
    )
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", SiftingWarning)
            stopped, verdict = compare(plan, console)
    finally:
        torch.set_num_threads(threads)
    if stopped is not None or verdict is None:
        say(f"sift demo: stopped by {stopped}; go on with --out {out}", error=True)
        return exit_code(stopped)
    show(verdict, console)
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        console.print(f"\nduring training the library warned: {message}")
    drawing = out / "gsgd.svg"
    about = convex(drawing)
    console.print(f"\n{about}")
    extra = Extra("Greedy SGD against SGD", about, drawing.read_bytes())
    report = write_html(collect([out / "runs"]), out / "report.html", extras=[extra])
    console.print(f"\nthe report, with every metric over time, is {report}")
    return 0
