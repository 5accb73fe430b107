"""What choosing before reading costs: an epoch with a memory against the plain loader's.

    python benchmarks/loading.py                  # about three minutes
    python benchmarks/loading.py --quick          # to see that it runs

A data set that takes 5 ms to read a sample, two workers. Every round times an epoch of the plain
loop and one at each ratio, in a newly drawn order. All train as many steps of as many samples, with
the sifter's own defaults: now and then an audit reads all candidates of a step, so what is reported is
the time of all rounds together. Ratios within each round are kept beside it. Then a memory of ten million
samples: its size, and the processor time of a step that chooses a batch from twice as many
candidates by their IDs, makes a `Step` of it, and takes in the losses of what was trained.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from sifting import MemoryExit, Sifter, __version__
from sifting.exits.base import TrainedBatch
from sifting.files import write_json
from sifting.model.call import Call

RESULTS = Path(__file__).parent / "results"
KEEPS = (0.5, 0.25)
BATCHES = (32, 64, 128)


class Slow(Dataset[tuple[Tensor, Tensor]]):
    """Takes a while to read a sample, as a disk and a decoder do."""

    def __init__(self, samples: int, seconds: float) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(samples, 16, generator=generator)
        self.y = torch.randint(0, 4, (samples,), generator=generator)
        self.seconds = seconds

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.seconds)
        return self.x[index], self.y[index]


def epoch(model: nn.Module, batches: Any) -> tuple[float, int]:
    """Train an epoch: its seconds, from asking for the first batch, and its steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    begin, steps = time.perf_counter(), 0
    for x, y in batches:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        steps += 1
    return time.perf_counter() - begin, steps


def loading(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of an epoch, plain and with a memory, over rounds."""
    data = Slow(args.samples, args.milliseconds / 1000)
    loader = DataLoader(data, args.batch, shuffle=True, num_workers=2, drop_last=True)
    models = {
        name: nn.Sequential(nn.Linear(16, 16), nn.Linear(16, 4)) for name in ("plain", *KEEPS)
    }
    sifters = {k: Sifter(models[k], exit=MemoryExit(), keep=k) for k in KEEPS}
    order, seconds = random.Random(0), {name: [] for name in models}
    for turn in range(args.rounds + 1):
        for name in order.sample(list(models), len(models)):
            batches = sifters[name](loader) if name in sifters else loader
            took, steps = epoch(models[name], batches)
            assert steps == len(loader)
            if turn:  # the first round warms up
                seconds[name].append(took)
    ratios = {
        str(keep): [a / b for a, b in zip(seconds[keep], seconds["plain"], strict=True)]
        for keep in KEEPS
    }
    return {
        "steps": len(loader),
        "seconds": {str(name): values for name, values in seconds.items()},
        "ratio": {str(k): sum(seconds[k]) / sum(seconds["plain"]) for k in KEEPS},
        "median": {name: statistics.median(values) for name, values in ratios.items()},
        "audits": {str(k): sifters[k].stats().audits for k in KEEPS},
        "ratios": ratios,
    }


def memory(args: argparse.Namespace) -> dict[str, Any]:
    """Size of a large memory, and milliseconds of a step that uses it, for several batch sizes."""
    exit = MemoryExit()
    exit.expect(args.ids)
    table, generator = exit.table, torch.Generator().manual_seed(0)
    for begin in range(0, args.ids, 2**20):  # all of them known: the most work there can be
        slots = torch.arange(begin, min(begin + 2**20, args.ids))
        table.write(slots, torch.rand(len(slots), generator=generator))
    size = sum(
        value.numel() * value.element_size()
        for value in vars(table).values()
        if isinstance(value, Tensor)
    )
    call = Call(None, None, ids=None)
    model = nn.Linear(1, 1)
    sifter = Sifter(model, exit=exit, keep=0.5, audit_every=0)
    times: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    for step in range(args.steps):
        for batch, spent in times.items():
            ids = torch.randint(0, args.ids, (2 * batch,), generator=generator).tolist()
            losses, kept = torch.rand(batch, generator=generator), torch.empty(batch, 1)
            begin_step = time.thread_time()
            made = sifter.chooser.of_ids.choose(ids, batch)
            sifter.chooser.of_ids.read(made, kept, candidates=None)
            exit.observe(TrainedBatch(call, None, made.ids), losses)
            exit.end_step()
            if step >= args.steps // 4:  # before, processor and caches are cold
                spent.append(1000 * (time.thread_time() - begin_step))
    return {
        "ids": args.ids,
        "megabytes": size / 1e6,
        "milliseconds_a_step": {str(b): statistics.median(v) for b, v in times.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=640)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--milliseconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=15)  # 320 selections
    parser.add_argument("--ids", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--quick", action="store_true", help="small, and nothing is written")
    args = parser.parse_args()
    if args.quick:
        args.samples, args.rounds, args.ids, args.steps = 96, 1, 100_000, 20
    torch.set_num_threads(1)
    torch.manual_seed(0)
    before = os.getloadavg()[0]
    found: dict[str, Any] = {
        "command": "python benchmarks/loading.py",
        "version": __version__,
        "torch": torch.__version__,
        "settings": {k: v for k, v in vars(args).items() if k != "quick"},
        "loading": loading(args),
        "memory": memory(args),
    }
    load = f"load {before:.1f} at the start and {os.getloadavg()[0]:.1f} at the end"
    found["machine"] = f"{platform.machine()}, {os.cpu_count()} cores, {load}"
    for keep, ratio in found["loading"]["ratio"].items():
        print(f"keep {keep}: {ratio:.3f} of the plain loader's time")
    steps = found["memory"]["milliseconds_a_step"].items()
    print(
        "{ids:,} IDs: {megabytes:.0f} MB, ".format(**found["memory"])
        + ", ".join(f"{ms:.3f} ms a step of {batch}" for batch, ms in steps)
    )
    if not args.quick:
        write_json(RESULTS / "loading.json", found)


if __name__ == "__main__":
    main()
