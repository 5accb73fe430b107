"""Scaling from one process to two, and what choosing together costs.

    python benchmarks/distributed.py                  # about two minutes on two cores
    python benchmarks/distributed.py --rounds 15 --layers 6 --hidden 256

It starts itself on two gloo processes. Every round takes some steps of each case, in an order
drawn again: one process alone while the other waits, then two with plain DDP, with selection on
each rank, with selection among all candidates, and with fully_shard. A step is timed from when
both begin to when both are done. Ratios are taken within a round, so that a busy machine slows
what is compared alike, and the median over rounds is reported with its quartiles. All cases train
as many sequences on each process; the model is a BERT with fresh weights. What ranks tell each
other of a memory is timed by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from transformers import BertConfig, BertForMaskedLM

from sifting import Sifter, __version__
from sifting.exits.memory import SHARE_EVERY
from sifting.files import write_json
from sifting.parallel.ranks import Ranks

RESULTS = Path(__file__).parent / "results"
VOCABULARY = 4000

Batch = dict[str, Tensor]


def make_model(args: argparse.Namespace) -> nn.Module:
    """The same weights on every rank and in every case."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=4,
        intermediate_size=4 * args.hidden,
        max_position_embeddings=args.length,
    )
    return BertForMaskedLM(config).train()


def make_batch(args: argparse.Namespace, size: int, seed: int) -> Batch:
    """Random tokens, 15 % of them labelled."""
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(5, VOCABULARY, (size, args.length), generator=generator)
    chosen_BT = torch.rand(size, args.length, generator=generator) < 0.15
    chosen_BT[:, 0] = True
    return {
        "input_ids": ids_BT.masked_fill(chosen_BT, 3),
        "attention_mask": torch.ones_like(ids_BT),
        "labels": ids_BT.masked_fill(~chosen_BT, -100),
    }


class Case:
    """One way of training, with a model and an optimizer of its own."""

    def __init__(
        self, args: argparse.Namespace, wrap: Callable[[nn.Module], nn.Module], **settings: Any
    ) -> None:
        self.args = args
        self.model = wrap(make_model(args))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.sifter, self.together = None, settings.get("scope") == "global"
        if settings:
            self.sifter = Sifter(self.model, exit=1, score="loss", audit_every=0, **settings)
        self.moved: list[int] = []

    def step(self, seed: int) -> None:
        n, rank = self.args.batch, dist.get_rank()
        if self.sifter is None:
            batch = make_batch(self.args, n, seed)
        else:
            selection = self.sifter.select(make_batch(self.args, 2 * n, seed))
            batch = selection.batch
            if self.together:
                self.moved.append(int((selection.indices // (2 * n) != rank).sum()))
        self.model(**batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def shard(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.bert.encoder.layer:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def exchange(args: argparse.Namespace) -> dict[str, float]:
    """What ranks tell each other of what they have trained, ten steps at a time: bytes and seconds."""
    ranks = Ranks(lambda: torch.device("cpu"))
    generator = torch.Generator().manual_seed(dist.get_rank())
    untold = []
    for _ in range(SHARE_EVERY):
        ids_B = torch.randint(10_000_000, (args.batch,), generator=generator).tolist()
        untold.append((ids_B, torch.rand(args.batch)))
    seconds = []
    for _ in range(20):
        dist.barrier()
        begin = time.perf_counter()
        ranks.gather(untold)
        seconds.append(time.perf_counter() - begin)
    return {
        "bytes_of_a_sample": len(pickle.dumps(untold)) / SHARE_EVERY / args.batch,
        "seconds_of_a_step": statistics.median(seconds) / SHARE_EVERY,
    }


def work(args: argparse.Namespace) -> None:
    """What each of the two processes does."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    cases = {
        "ddp": Case(args, DDP),
        "rank": Case(args, DDP, scope="rank"),
        "global": Case(args, DDP, scope="global"),
        "fsdp-rank": Case(args, shard, scope="rank"),
        "fsdp-global": Case(args, shard, scope="global"),
    }
    names = ["one", "one-rank", *cases]
    if rank == 0:  # the other process waits meanwhile
        cases["one"] = Case(args, lambda model: model)
        cases["one-rank"] = Case(args, lambda model: model, scope="rank")
    rounds: list[dict[str, float]] = []
    order = random.Random(0)
    for number in range(args.rounds + 1):  # the first warms up
        order.shuffle(names)
        times: dict[str, float] = {}
        for name in names:
            dist.barrier()
            begin = time.perf_counter()
            if name in cases:
                for step in range(args.steps):
                    cases[name].step(seed=1000 * number + 10 * step + rank)
            dist.barrier()
            times[name] = (time.perf_counter() - begin) / args.steps
        if number:
            rounds.append(times)
    told = exchange(args)
    if rank == 0:
        scored = {
            name: case.sifter.stats().scoring_share for name, case in cases.items() if case.sifter
        }
        moved = statistics.mean(cases["global"].moved)
        found = {"rounds": rounds, "moved": moved, "choosing": scored, "memory": told}
        args.out.write_text(json.dumps(found))
    dist.barrier()
    os._exit(0)


def quartiles(values: list[float]) -> list[float]:
    low, middle, high = statistics.quantiles(values, n=4)
    return [low, middle, high]


def report(args: argparse.Namespace, found: dict[str, Any]) -> dict[str, list[float]]:
    rounds = found["rounds"]

    def ratio(a: str, b: str) -> list[float]:
        return quartiles([times[a] / times[b] for times in rounds])

    ratios = {
        "two processes over one, samples a second, plain": quartiles(
            [2 * times["one"] / times["ddp"] for times in rounds]
        ),
        "two processes over one, samples a second, sifted": quartiles(
            [2 * times["one-rank"] / times["rank"] for times in rounds]
        ),
        "a step that sifts over a plain one, one process": ratio("one-rank", "one"),
        "a step that sifts over a plain one, DDP": ratio("rank", "ddp"),
        'scope="global" over "rank", DDP': ratio("global", "rank"),
        'scope="global" over "rank", fully_shard': ratio("fsdp-global", "fsdp-rank"),
    }
    print(f"{'':<52}{'median':>8}  quartiles")
    for name, (low, middle, high) in ratios.items():
        print(f"{name:<52}{middle:>8.3f}  {low:.3f} to {high:.3f}")
    print(f"\nsamples that came from the other rank: {found['moved']:.1f} of {args.batch} a step")
    told, step = found["memory"], statistics.median(times["ddp"] for times in rounds)
    print(
        f"a memory's exchange every {SHARE_EVERY} steps: {told['bytes_of_a_sample']:.0f} bytes per sample that "
        f"was trained, {told['seconds_of_a_step'] / step:.2%} of a plain step"
    )
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--length", type=int, default=64, help="positions of a sequence")
    parser.add_argument("--batch", type=int, default=16, help="sequences a process trains a step")
    parser.add_argument("--steps", type=int, default=3, help="of each case in a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, default=RESULTS / "distributed.json")
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.out:
        work(args)
    load = os.getloadavg()
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "found.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", "2", __file__, *sys.argv[1:], "--out", str(out)),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            check=True,
        )
        found = json.loads(out.read_text())
    ratios = report(args, found)
    write_json(
        args.json,
        {
            "command": " ".join(["python", "benchmarks/distributed.py", *sys.argv[1:]]),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": {
                "cores": os.cpu_count(),
                "system": platform.platform(),
                "load_before": load,
                "load_after": os.getloadavg(),
            },
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "sifting": __version__,
            },
            "settings": {
                name: getattr(args, name)
                for name in ("layers", "hidden", "length", "batch", "steps", "rounds")
            },
            "ratios": {
                name: {"low": low, "median": middle, "high": high}
                for name, (low, middle, high) in ratios.items()
            },
            **found,
        },
    )
    print(f"written to {args.json}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
