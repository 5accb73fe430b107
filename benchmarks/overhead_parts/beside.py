"""A step with ahead=1 beside the plain one: training on one core, scoring on another, by the clock on the wall.

Every round trains some steps of each loop, in a newly drawn order: the plain loop on n sequences, `exit=1` among
2n scored in the loop, and the same with ahead=1. All have one thread for their arithmetic, so that the
thread of ahead=1 has a core of its own only where another one is free: above a load of the number of
cores the ratio says nothing. A loop's first three steps are not timed. Ratios are taken within a round.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from overhead_parts.bert import Batch, make_model, make_optimizer
from overhead_parts.language import COMMON
from overhead_parts.remembering import LENGTH, Numbered
from sifting import Sifter

UNTIMED = 3  # steps of a loop: the first ones are not scored ahead
STEPS = 2  # of each loop in a round
LOOPS = ("plain", "in the loop", "ahead=1")


class Loop:
    """A training loop that can be stopped and continued."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        self.model = make_model(argparse.Namespace(length=LENGTH, dropout=0.1, layers=args.layers))
        self.optimizer = make_optimizer(self.model)
        # one epoch: its first step has none before it that it could be scored beside
        data = Numbered((UNTIMED + args.rounds * STEPS + 1) * args.batch)
        loader: Any = DataLoader(data, args.batch, shuffle=True)
        self.sifter: Sifter | None = None
        if name != "plain":
            self.sifter = Sifter(self.model, ahead=int(name == "ahead=1"), **COMMON)
            loader = self.sifter(loader)
        self.batches: Iterator[Batch] = iter(loader)
        self.run(UNTIMED)

    def run(self, steps: int) -> list[float]:
        """Train some steps; seconds of wall and of processor time, of all threads, for each."""
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.model(**next(self.batches)).loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        if self.sifter is not None:
            self.sifter.wait()  # what it has begun for the next step is this one's to pay for
        seconds = time.perf_counter() - begin
        return [seconds / steps, (time.process_time() - cpu) / steps]


def ahead(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step of each loop, and their ratios to the plain one's."""
    loops = {name: Loop(name, args) for name in LOOPS}
    order, rounds, loads = random.Random(0), [], []
    for number in range(args.rounds):
        found = {name: loops[name].run(STEPS) for name in order.sample(LOOPS, len(LOOPS))}
        rounds.append(found)
        loads.append(os.getloadavg()[0])
        said = ", ".join(f"{name} {seconds[0]:.3f} s" for name, seconds in found.items())
        print(f"round {number + 1} of {args.rounds}: {said}", file=sys.stderr, flush=True)
    clocks = {"wall": 0, "cpu": 1}
    return {
        "model": f"BERT-base, fresh weights, length {LENGTH}",
        "batch": args.batch,
        "rounds": args.rounds,
        "seconds": {name: statistics.median(found[name][0] for found in rounds) for name in LOOPS},
        "ratios": {
            name: {
                clock: statistics.median(found[name][i] / found["plain"][i] for found in rounds)
                for clock, i in clocks.items()
            }
            for name in LOOPS[1:]
        },
        "spread": {
            name: [f(found[name][0] / found["plain"][0] for found in rounds) for f in (min, max)]
            for name in LOOPS[1:]
        },
        "load": loads,
    }
