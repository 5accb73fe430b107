"""A step with ahead=1 beside the plain one: training on one core, scoring on another.

    python benchmarks/ahead.py                    # BERT-base, length 128; some ten minutes on two quiet cores
    python benchmarks/ahead.py --layers 2 --hidden 128 --rounds 4 --out ''    # to see that it runs

Every round trains some steps of each loop, in an order drawn anew: the plain loop on n sequences,
`exit=1` among 2n scored in the loop, and the same with ahead=1. All have one thread for their
arithmetic (`--threads`), so that the thread of ahead=1 has a core of its own only where another one is
free: the load average is recorded, and above the number of cores the ratio says nothing. A loop's first
three steps are not timed. Ratios are taken within a round; their median is reported.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from transformers import BertConfig, BertForPreTraining

from sifting import Sifter, __version__
from sifting.files import write_json

RESULTS = Path(__file__).parent / "results"
AT_MOST = 1.02  # of the plain loop's update
BEFORE = 3  # steps of a loop that are not timed: the first ones are not scored ahead
LOOPS = ("plain", "in the loop", "ahead")

Batch = dict[str, Tensor]


class Tokens(Dataset[Batch]):
    """Random tokens, 15 % of them labelled."""

    def __init__(self, samples: int, length: int, vocab: int) -> None:
        generator = torch.Generator().manual_seed(0)
        self.ids_BT = torch.randint(1000, vocab, (samples, length), generator=generator)
        chosen_BT = torch.rand(samples, length, generator=generator) < 0.15
        chosen_BT[:, 0] = True
        self.labels_BT = self.ids_BT.masked_fill(~chosen_BT, -100)
        self.next_B = torch.randint(0, 2, (samples,), generator=generator)

    def __len__(self) -> int:
        return len(self.ids_BT)

    def __getitem__(self, index: int) -> Batch:
        return {
            "input_ids": self.ids_BT[index],
            "labels": self.labels_BT[index],
            "next_sentence_label": self.next_B[index],
        }


class Loop:
    """A training loop that can be stopped and gone on with."""

    def __init__(self, name: str, args: argparse.Namespace) -> None:
        torch.manual_seed(0)
        config = BertConfig(
            num_hidden_layers=args.layers,
            hidden_size=args.hidden,
            intermediate_size=4 * args.hidden,
            num_attention_heads=max(1, args.hidden // 64),
        )
        self.model = BertForPreTraining(config).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        # one epoch: its first step has none before it that it could be scored beside
        steps = BEFORE + args.rounds * args.steps + 1
        data = Tokens(steps * args.batch, args.length, config.vocab_size)
        self.loader = DataLoader(data, args.batch, shuffle=True)
        self.sifter: Sifter | None = None
        if name != "plain":
            options: dict[str, Any] = {"score": "loss", "keep": 0.5, "audit_every": 0}
            self.sifter = Sifter(self.model, exit=1, ahead=int(name == "ahead"), **options)
        source: Any = self.loader if self.sifter is None else self.sifter(self.loader)
        self.batches: Iterator[Batch] = iter(source)
        self.run(BEFORE)

    def run(self, steps: int) -> tuple[float, float]:
        """Train some steps; seconds of wall and of processor time, of all threads, for each."""
        begin, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            loss = self.model(**next(self.batches)).loss
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
        if self.sifter is not None:
            self.sifter.wait()  # what it has begun for the next step is this one's to pay for
        seconds = time.perf_counter() - begin
        return seconds / steps, (time.process_time() - cpu) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, default=4, help="of each loop in a round")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", default=str(RESULTS / "ahead-128.json"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    loops = {name: Loop(name, args) for name in LOOPS}
    order, rounds, loads = random.Random(0), [], []
    for number in range(args.rounds):
        found = {name: loops[name].run(args.steps) for name in order.sample(LOOPS, len(LOOPS))}
        rounds.append(found)
        loads.append(os.getloadavg()[0])
        print(f"round {number + 1}: " + ", ".join(f"{k} {v[0]:.3f} s" for k, v in found.items()))
    report = {
        "machine": f"{os.cpu_count()} cores of an {platform.machine()}",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "sifting": __version__,
        "settings": vars(args),
        "rounds": rounds,
        "load": loads,
        "seconds": {name: statistics.median(found[name][0] for found in rounds) for name in LOOPS},
        "ratios": {
            name: {
                clock: statistics.median(found[name][i] / found["plain"][i] for found in rounds)
                for i, clock in enumerate(("wall", "cpu"))
            }
            for name in LOOPS[1:]
        },
    }
    for name, ratio in report["ratios"].items():
        print(f"{name}: {ratio['wall']:.3f} of the plain step ({ratio['cpu']:.3f} of its CPU time)")
    print(f"load average: median {statistics.median(loads):.1f}, at most {max(loads):.1f}")
    holds = report["ratios"]["ahead"]["wall"] <= AT_MOST
    print(f"ahead=1 at most {AT_MOST} of the plain step: {'holds' if holds else 'does NOT hold'}")
    if args.out:
        write_json(Path(args.out), report)


if __name__ == "__main__":
    main()
