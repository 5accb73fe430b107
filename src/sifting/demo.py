"""`sift demo`: one small real task, trained with and without sifting, and an honest verdict.

Handwritten digits (8×8 pixels, from scikit-learn), a small residual network, the same number of
updates of the same batch size for every arm, each learning rate decayed to zero within them.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

from sifting._version import __version__
from sifting.engine import Engine
from sifting.meter import SiftingWarning
from sifting.problem import Pace, Task
from sifting.runs import RunError, RunFolder, read_run, write_json
from sifting.sifter import Sifter

BATCH = 32

ARMS: dict[str, dict[str, Any] | None] = {
    "baseline": None,
    "random-keep": {"policy": "random"},
    "exact loss": {"exit": "last", "score": "loss"},
    "SIFT, exit 1, loss": {"exit": 1, "score": "loss"},
    "SIFT, tuned exit, entropy": {"exit": "tuned", "score": "entropy"},
}


class Residual(nn.Module):
    """A block that keeps its input's shape, so that the head fits after any of them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


def build_model() -> nn.Sequential:
    """A stem, six residual blocks, a norm and a head."""
    blocks = nn.Sequential(*[Residual(64) for _ in range(6)])
    return nn.Sequential(nn.Linear(64, 64), blocks, nn.LayerNorm(64), nn.Linear(64, 10))


@dataclass(frozen=True)
class Digits:
    """The digits, split into training and test pictures by a seed."""

    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @classmethod
    def load(cls, seed: int) -> Digits:
        pictures, labels = load_digits(return_X_y=True)
        x, y = torch.tensor(pictures, dtype=torch.float32) / 16, torch.tensor(labels)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
        train, test = order[:1200], order[1200:]
        return cls((x[train], y[train]), (x[test], y[test]))


class Batches:
    """Shuffled batches of one epoch, the last incomplete one left out."""

    def __init__(self, data: tuple[Tensor, Tensor], size: int, seed: int) -> None:
        self.data, self.size = data, size
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.data[0]) // self.size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.data
        order = torch.randperm(len(x), generator=self.generator)
        for start in range(0, len(self) * self.size, self.size):
            rows = order[start : start + self.size]
            yield x[rows], y[rows]


@dataclass(frozen=True)
class Result:
    """What one arm came to with one seed."""

    accuracy: float
    seconds: float
    stats: dict[str, Any] | None


def cross_entropy(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """The loss that is trained."""
    x, y = batch
    return F.cross_entropy(model(x), y)


def train(arm: dict[str, Any] | None, *, seed: int, updates: int, folder: Path) -> Result:
    """Train one arm for a number of updates, its learning rate decayed within them."""
    digits = Digits.load(seed)
    torch.manual_seed(seed)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=3e-3, total_steps=updates)
    keep = 1.0 if arm is None else 0.5
    sifter = Sifter(model, keep=keep, warmup_steps=updates // 10, seed=seed, **(arm or {}))

    def evaluate(model: nn.Module) -> dict[str, float]:
        model.eval()
        with torch.no_grad():
            x, y = digits.test
            return {"accuracy": float((model(x).argmax(dim=1) == y).double().mean())}

    engine = Engine(
        Task(
            model,
            optimizer,
            Batches(digits.train, round(BATCH / keep), seed),
            cross_entropy,
            evaluate,
            schedule,
        ),
        sifter,
        Pace(updates, evaluate_every=max(1, updates // 10), checkpoint_every=updates),
        RunFolder.create(
            folder, config={"arm": arm or "baseline", "seed": seed, "updates": updates}
        ),
    )
    engine.run()
    run = read_run(folder)
    assert run.summary is not None
    spent = run.summary["seconds"]
    return Result(
        accuracy=run.summary["final"]["accuracy"],
        seconds=sum(spent[name] for name in spent if name not in ("evaluation", "data")),
        stats=None if arm is None else run.summary["sifting"],
    )


def verdict(results: dict[str, list[Result]]) -> str:
    """One sentence per arm: the paired difference to the baseline, with its uncertainty."""
    base = results["baseline"]
    lines = []
    for name, runs in results.items():
        if name == "baseline":
            continue
        gaps = [100 * (r.accuracy - b.accuracy) for r, b in zip(runs, base, strict=True)]
        mean = sum(gaps) / len(gaps)
        spread = math.sqrt(sum((g - mean) ** 2 for g in gaps) / max(1, len(gaps) - 1))
        half = _t_quantile(len(gaps) - 1) * spread / math.sqrt(len(gaps))
        cost = sum(r.seconds for r in runs) / sum(b.seconds for b in base)
        if mean - half > 0:
            said = "ahead of the baseline"
        elif mean + half < 0:
            said = "behind the baseline"
        else:
            said = "no measurable difference to the baseline"
        lines.append(
            f"{name}: {said} at equal updates ({mean:+.2f} ± {half:.2f} points), "
            f"in {cost:.2f} of its time"
        )
    return "\n".join(lines)


def _t_quantile(freedom: int) -> float:
    """Two-sided 95 % quantile of Student's t, enough of it for a handful of seeds."""
    table = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26}
    return table.get(freedom, 1.96 if freedom > 9 else math.inf)


def main(argv: Sequence[str] | None = None) -> int:
    """Run every arm with every seed, interleaved, and print what came out."""
    try:
        return _main(argv)
    except RunError as error:
        print(f"sift demo: {error}", file=sys.stderr)
        return 2


def _main(argv: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(prog="sift demo", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="runs of each arm (default: 5)")
    parser.add_argument(
        "--updates", type=int, default=600, help="updates of each run (default: 600)"
    )
    parser.add_argument("--out", type=Path, help="folder for the runs (default: a temporary one)")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    args = parser.parse_args(argv)
    if args.seeds < 2 or args.updates < 20:
        parser.error(f"--seeds {args.seeds} --updates {args.updates}: give at least 2 and 20")
    out = args.out if args.out is not None else Path(tempfile.mkdtemp(prefix="sift-demo-"))
    torch.set_num_threads(1)  # on layers this small, threads cost more than they give
    console = Console()
    console.print(
        f"8×8 digits, {len(ARMS)} arms × {args.seeds} seeds, {args.updates} updates of {BATCH} samples each; "
        "the arms take turns, so that a busy machine is busy for all of them"
    )
    results: dict[str, list[Result]] = {name: [] for name in ARMS}
    spoken: dict[str, str] = {}
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=len(ARMS) * args.seeds)
        # a run that does not count, so that the first arm does not pay for warming up
        with tempfile.TemporaryDirectory() as scratch:
            train(None, seed=0, updates=20, folder=Path(scratch) / "run")
        for seed in range(args.seeds):
            for name, arm in ARMS.items():
                progress.update(task, description=f"{name:<26}")
                with warnings.catch_warnings(record=True) as caught:
                    warnings.simplefilter("always", SiftingWarning)
                    folder = out / f"{name.replace(', ', '-').replace(' ', '-')}-seed{seed}"
                    results[name].append(train(arm, seed=seed, updates=args.updates, folder=folder))
                for warning in caught:
                    spoken.setdefault(name, str(warning.message))
                progress.advance(task)
    console.print(table(results))
    console.print(verdict(results))
    for name, message in spoken.items():
        console.print(f"\nduring {name}, the library warned: {message}")
    console.print(f"\nthe runs, with every figure over time, are in {out}")
    if args.json is not None:
        write_results(args.json, results, updates=args.updates)
    console.print(
        "\nrho_approx is the mean exact loss of the samples kept over that of all candidates: 1.00 is "
        "random, below is\nworse. It bounds what selection can buy in steps; whether it buys anything is "
        "in the accuracy column."
    )
    return 0


def write_results(path: Path, results: dict[str, list[Result]], *, updates: int) -> None:
    """Write every run's figures, whole or not at all."""
    content = {
        "command": f"sift demo --seeds {len(results['baseline'])} --updates {updates}",
        "version": __version__,
        "torch": torch.__version__,
        "runs": {name: [asdict(run) for run in runs] for name, runs in results.items()},
        "verdict": verdict(results).splitlines(),
    }
    write_json(path, content)


def table(results: dict[str, list[Result]]) -> Table:
    """The figures of all arms."""
    shown = Table("arm", "test accuracy %", "seconds", "scoring share", "rho_approx", "recall")
    for name, runs in results.items():
        accuracies = torch.tensor([100 * run.accuracy for run in runs])
        stats = [run.stats for run in runs if run.stats is not None]
        rhos, recalls, shares = (
            [s[key] for s in stats if s[key] is not None]
            for key in ("rho_approx", "recall", "scoring_share")
        )
        shown.add_row(
            name,
            f"{accuracies.mean():.2f} ± {accuracies.std():.2f}",
            f"{sum(run.seconds for run in runs) / len(runs):.2f}",
            f"{sum(shares) / len(shares):.0%}" if shares else "–",
            f"{sum(rhos) / len(rhos):.2f}" if rhos else "–",
            f"{sum(recalls) / len(recalls):.2f}" if recalls else "–",
        )
    return shown
