"""Time and memory of scoring beside one update, on BERT-base.

    python benchmarks/overhead.py                      # a few minutes on two cores
    python benchmarks/overhead.py --score entropy --length 512 --batch 4

Every round times, in a random order, an update on n sequences twice (forward, backward, AdamW)
and the choice of n among 2n candidates at each exit, so that a busy machine slows all of them
alike; a ratio is taken within its round, and the median over rounds is reported. The ratio of
processor time, summed over threads, stands beside it: other processes disturb it less. The two
plainer ways of having the same scores are timed in every third round. The ratio of FLOPs is what
scoring would cost if it did its products as fast as the update does its own.

Memory is measured in a fresh process for each case: the growth of its peak resident set over
what is resident with the model (and, for the update, the optimizer's state) in place and every
library warm. The process gives freed memory back at once (MALLOC_MMAP_THRESHOLD_), so that the
peak is that of live tensors and not of the allocator's caches.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor
from transformers import BertConfig, BertForPreTraining

from sifting import Sifter, __version__, cost
from sifting.files import write_json

EXITS = (1, 2, 3, 6, 12)
RESULTS = Path(__file__).parent / "results"
FIRST_EXIT_AT_MOST = 0.075  # of an update
LIMIT_AT_MOST = 1.15  # times the ratio of FLOPs
MEMORY_AT_MOST = 0.25  # of an update's peak
CASES = ("update", "sifter-1", "sifter-12", "everywhere-1", "naive")

PLAIN = ("everywhere", "naive")  # what scoring is compared with
PLAIN_EVERY = 3  # rounds

Batch = dict[str, Tensor]
Rounds = list[dict[str, list[tuple[float, float]]]]  # of each case: seconds of wall and of CPU


def make_model(args: argparse.Namespace) -> BertForPreTraining:
    """BERT-base with fresh weights, in training mode."""
    torch.manual_seed(0)
    config = BertConfig(
        max_position_embeddings=max(512, args.length),
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.dropout,
    )
    return BertForPreTraining(config).train()


def make_batch(config: BertConfig, size: int, length: int, labelled: float, seed: int = 0) -> Batch:
    """Random tokens, some of them labelled, and a next-sentence label each."""
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(1000, config.vocab_size, (size, length), generator=generator)
    chosen_BT = torch.rand(size, length, generator=generator) < labelled
    chosen_BT[:, 0] = True
    return {
        "input_ids": ids_BT.masked_fill(chosen_BT, 103),
        "token_type_ids": torch.zeros_like(ids_BT),
        "attention_mask": torch.ones_like(ids_BT),
        "labels": ids_BT.masked_fill(~chosen_BT, -100),
        "next_sentence_label": torch.randint(0, 2, (size,), generator=generator),
    }


def make_optimizer(model: BertForPreTraining) -> torch.optim.Optimizer:
    """Fused, the fastest there is: a slow step would flatter the ratios."""
    return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def update(
    model: BertForPreTraining, optimizer: torch.optim.Optimizer, batch: Batch
) -> dict[str, float]:
    """One training step; gives the seconds of its parts."""
    begin = time.perf_counter()
    loss = model(**batch).loss
    forward = time.perf_counter()
    loss.backward()
    backward = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    return {
        "forward": forward - begin,
        "backward": backward - forward,
        "optimizer": time.perf_counter() - backward,
    }


def plain_scores(score: str, logits_BTC: Tensor, nsp_BC: Tensor, batch: Batch) -> Tensor:
    """Scores from logits at every position, as one writes them at first."""
    labels_BT = batch["labels"]
    if score == "loss":
        token_BT = F.cross_entropy(
            logits_BTC.flatten(0, 1), labels_BT.flatten(), reduction="none"
        ).view_as(labels_BT)
        other_B = F.cross_entropy(nsp_BC, batch["next_sentence_label"], reduction="none")
    else:
        logp_BTC = logits_BTC.log_softmax(dim=-1)
        token_BT = -(logp_BTC.exp() * logp_BTC).sum(dim=-1)
        other_B = -(nsp_BC.softmax(dim=-1) * nsp_BC.log_softmax(dim=-1)).sum(dim=-1)
    mask_BT = labels_BT != -100
    return (token_BT * mask_BT).sum(dim=1) / mask_BT.sum(dim=1) + other_B


@torch.no_grad()
def head_everywhere(model: BertForPreTraining, batch: Batch, score: str, exit: int) -> Tensor:
    """The block list sliced, the head on every position."""
    inputs = {k: v for k, v in batch.items() if "label" not in k}
    layers = model.bert.encoder.layer
    model.eval()
    try:
        model.bert.encoder.layer = layers[:exit]
        output = model(**inputs)
        return plain_scores(score, output.prediction_logits, output.seq_relationship_logits, batch)
    finally:
        model.bert.encoder.layer = layers
        model.train()


@torch.no_grad()
def naive(model: BertForPreTraining, batch: Batch, score: str, exit: int) -> Tensor:
    """The whole model, all its hidden states, then the head on those of the exit."""
    inputs = {k: v for k, v in batch.items() if "label" not in k}
    model.eval()
    hidden_BTH = model(**inputs, output_hidden_states=True).hidden_states[exit]
    logits_BTC, nsp_BC = model.cls(hidden_BTH, model.bert.pooler(hidden_BTH))
    model.train()
    return plain_scores(score, logits_BTC, nsp_BC, batch)


def sifter_at(model: BertForPreTraining, exit: int, score: str) -> Sifter:
    return Sifter(model, exit=exit, score=score, keep=0.5, audit_every=0)


def agree(model: BertForPreTraining, batch: Batch, score: str, sifter: Sifter, exit: int) -> float:
    """Largest difference between the scores of the three ways: they must be the same scores."""
    ours = sifter.score(batch)
    return max(
        float((ours - other).abs().max())
        for other in (
            head_everywhere(model, batch, score, exit),
            naive(model, batch, score, exit),
        )
    )


def time_all(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of every case in every round."""
    model = make_model(args)
    optimizer = make_optimizer(model)
    candidates = make_batch(model.config, 2 * args.batch, args.length, args.labelled)
    kept = {key: value[: args.batch] for key, value in candidates.items()}
    sifters = {exit: sifter_at(model, exit, args.score) for exit in EXITS}
    difference = agree(model, candidates, args.score, sifters[1], 1)
    if difference > 1e-3:
        raise SystemExit(f"the three ways disagree by {difference:.2g}: their times mean nothing")

    parts: list[dict[str, float]] = []
    cases: dict[str, Callable[[], object]] = {
        "update": lambda: parts.append(update(model, optimizer, kept))
    }
    for exit in EXITS:
        cases[f"sifter-{exit}"] = lambda exit=exit: sifters[exit].select(candidates)
        cases[f"everywhere-{exit}"] = lambda exit=exit: head_everywhere(
            model, candidates, args.score, exit
        )
    cases["naive"] = lambda: naive(model, candidates, args.score, 1)
    for name in ("update", *(f"sifter-{exit}" for exit in EXITS)):
        cases[name]()  # the plan is made, the libraries are warm
    parts.clear()
    rounds: Rounds = []
    order = random.Random(0)
    for round in range(args.rounds):
        plain = () if round % PLAIN_EVERY else tuple(n for n in cases if n.startswith(PLAIN))
        names = ["update", *(n for n in cases if not n.startswith(PLAIN)), *plain]
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for name in order.sample(names, len(names)):
            start, start_cpu = time.perf_counter(), time.process_time()
            cases[name]()
            found[name].append((time.perf_counter() - start, time.process_time() - start_cpu))
        rounds.append(found)
        print(f"round {round + 1} of {args.rounds}", file=sys.stderr, flush=True)
    labelled = float((candidates["labels"] != -100).float().mean())
    split = {name: statistics.median(part[name] for part in parts) for name in parts[0]}
    return {
        "rounds": rounds,
        "update": split,
        "labelled": labelled,
        "scores_differ_by": difference,
    }


def seconds_of(rounds: Rounds, name: str) -> list[float]:
    return [wall for found in rounds for wall, _ in found.get(name, [])]


def ratios(rounds: Rounds, name: str, clock: int) -> list[float]:
    """A case's time over the mean of its round's updates; clock 0 is the wall's, 1 the CPU's."""
    return [
        one[clock] / statistics.fmean(update[clock] for update in found["update"])
        for found in rounds
        for one in found.get(name, [])
    ]


def peak_growth(work: Callable[[], object]) -> int:
    """Bytes by which the peak resident set rises over what is resident now (Linux only)."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = _status("VmRSS")
    work()
    # not getrusage's ru_maxrss: that of a child starts from its parent's, which holds a model too
    return _status("VmHWM") - before


def _status(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"{field} is not in /proc/self/status")


def measure_memory(args: argparse.Namespace) -> dict[str, int]:
    """In a process of its own: peak growth of the first call of a case, and of the second."""
    model = make_model(args)
    name, _, exit = args.memory_case.partition("-")
    tiny = make_batch(model.config, 2, 8, args.labelled)
    optimizer = make_optimizer(model) if name == "update" else None
    candidates = make_batch(model.config, 2 * args.batch, args.length, args.labelled)
    kept = {key: value[: args.batch].clone() for key, value in candidates.items()}
    work: Callable[[], object]
    if optimizer is not None:
        update(model, optimizer, tiny)  # the optimizer's state is there, the gradients are not
        work = lambda: update(model, optimizer, kept)  # noqa: E731
    else:
        head_everywhere(model, tiny, args.score, 1)
        sifter = sifter_at(model, int(exit or 1), args.score)
        work = {
            "sifter": lambda: sifter.select(candidates),
            "everywhere": lambda: head_everywhere(model, candidates, args.score, int(exit)),
            "naive": lambda: naive(model, candidates, args.score, 1),
        }[name]
    return {"first": peak_growth(work), "later": peak_growth(work)}


def memory_all(args: argparse.Namespace) -> dict[str, dict[str, int]]:
    """Peak growth of each case, each in a fresh process."""
    found = {}
    for case in CASES:
        command = [sys.executable, __file__, "--memory-case", case]
        for name in ("score", "length", "batch", "labelled", "dropout", "threads"):
            command += [f"--{name}", str(getattr(args, name))]
        env = {
            **os.environ,
            "MALLOC_MMAP_THRESHOLD_": str(2**17),
            "MALLOC_TRIM_THRESHOLD_": str(2**17),
        }
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
        found[case] = json.loads(done.stdout.splitlines()[-1])
    return found


def report(args: argparse.Namespace, timed: dict[str, Any], memory: Any) -> dict[str, Any]:
    """Print the tables and the verdicts; give what goes into the file."""
    rounds, labelled = timed["rounds"], timed["labelled"]
    shape = replace(cost.BERT_BASE, length=args.length)
    updates = seconds_of(rounds, "update")
    print(
        f"BERT-base, length {args.length}, {labelled:.1%} labelled, {2 * args.batch} candidates, "
        f"update on {args.batch}, score={args.score!r},\n"
        f"dropout {args.dropout}, {args.threads} threads; one update takes "
        f"{statistics.median(updates):.2f} s (from {min(updates):.2f} to {max(updates):.2f}; load "
        f"average {os.getloadavg()[0]:.1f})\n"
        f"ratios are medians of {args.rounds} interleaved rounds; in brackets their quartiles\n"
    )
    print(
        "exit   sifter                    CPU    FLOPs  sifter/FLOPs  head everywhere  "
        "whole model  paper (512)"
    )
    rows, checks = [], {}
    for exit in EXITS:
        limit = cost.scoring_ratio(shape, exit=exit, labelled=labelled)
        wall = ratios(rounds, f"sifter-{exit}", 0)
        low, middle, high = statistics.quantiles(wall, n=4) if len(wall) > 1 else wall * 3
        row = {
            "exit": exit,
            "sifter": middle,
            "quartiles": [low, high],
            "sifter_cpu": statistics.median(ratios(rounds, f"sifter-{exit}", 1)),
            "seconds": statistics.median(seconds_of(rounds, f"sifter-{exit}")),
            "flops": limit,
            "head_everywhere": statistics.median(ratios(rounds, f"everywhere-{exit}", 0)),
            "whole_model": statistics.median(ratios(rounds, "naive", 0)),
            "paper_512": cost.paper_ratio(exit, score=args.score),
        }
        rows.append(row)
        print(
            f"{exit:>4} {middle:>8.4f} [{low:.4f}, {high:.4f}] {row['sifter_cpu']:>7.4f} "
            f"{limit:>8.4f} {middle / limit:>13.2f} {row['head_everywhere']:>16.3f} "
            f"{row['whole_model']:>12.3f} {row['paper_512']:>12.3f}"
        )
        checks[f"exit {exit} at most {LIMIT_AT_MOST} × its FLOP ratio"] = (
            middle <= LIMIT_AT_MOST * limit,
            f"{middle / limit:.2f} (CPU time: {row['sifter_cpu'] / limit:.2f})",
        )
    first = rows[0]["sifter"]
    checks[f"exit 1 at most {FIRST_EXIT_AT_MOST} of an update"] = (
        first <= FIRST_EXIT_AT_MOST,
        f"{first:.4f} (CPU time: {rows[0]['sifter_cpu']:.4f})",
    )
    if memory:
        whole = memory["update"]["later"]
        print("\npeak memory beside weights and optimizer      MiB  of the update  estimated MiB")
        estimates = {
            "update": cost.update_bytes(shape, args.batch, dropout=args.dropout > 0),
            "sifter": cost.scoring_bytes(
                shape,
                2 * args.batch,
                labelled=labelled,
                copies={"loss": 2, "entropy": 4}[args.score],
            ),
        }
        for case, grown in memory.items():
            for call in ("first", "later"):
                estimate = estimates.get(case.split("-")[0])
                print(
                    f"{case + ', ' + call + ' call':<40} {grown[call] / 2**20:>8.0f} "
                    f"{grown[call] / whole:>14.3f} "
                    + (f"{estimate / 2**20:>14.0f}" if estimate else f"{'':>14}")
                )
        worst = max(memory[c][k] for c in memory if "sifter" in c for k in ("first", "later"))
        checks[f"scoring's peak at most {MEMORY_AT_MOST} of the update's"] = (
            worst <= MEMORY_AT_MOST * whole,
            f"{worst / whole:.3f}",
        )
    print()
    for name, (passed, got) in checks.items():
        print(f"{'PASS' if passed else 'MISS'}  {name}: {got}")
    return {
        "rows": rows,
        "update": timed["update"],
        "rounds": rounds,
        "labelled": labelled,
        "scores_differ_by": timed["scores_differ_by"],
        "peak_growth_bytes": memory,
        "checks": {name: {"pass": ok, "got": got} for name, (ok, got) in checks.items()},
    }


def processor() -> str:
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--score", choices=("loss", "entropy"), default="loss")
    parser.add_argument("--length", type=int, default=128, help="positions of a sequence")
    parser.add_argument("--batch", type=int, default=8, help="n: sequences of an update")
    parser.add_argument("--labelled", type=float, default=0.15, help="share of labelled positions")
    parser.add_argument("--dropout", type=float, default=0.1, help="while training")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--no-memory", action="store_true", help="skip the memory measurement")
    parser.add_argument("--json", type=Path, help="where the figures go")
    parser.add_argument("--strict", action="store_true", help="exit with 1 on a missed target")
    parser.add_argument("--memory-case", choices=CASES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.memory_case:
        print(json.dumps(measure_memory(args)))
        return 0
    load = os.getloadavg()
    timed = time_all(args)
    can_measure = not args.no_memory and Path("/proc/self/clear_refs").exists()
    found = report(args, timed, memory_all(args) if can_measure else None)
    path = args.json or RESULTS / f"overhead-{args.score}-{args.length}.json"
    write_json(
        path,
        {
            "command": " ".join(["python", "benchmarks/overhead.py", *sys.argv[1:]]),
            "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "machine": {
                "processor": processor(),
                "cores": os.cpu_count(),
                "threads": args.threads,
                "system": platform.platform(),
                "load_before": load,
                "load_after": os.getloadavg(),
            },
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
                "sifting": __version__,
            },
            "settings": {
                name: getattr(args, name)
                for name in ("score", "length", "batch", "labelled", "dropout", "rounds")
            },
            **found,
        },
    )
    print(f"\nwritten to {path}")
    return int(args.strict and not all(check["pass"] for check in found["checks"].values()))


if __name__ == "__main__":
    raise SystemExit(main())
