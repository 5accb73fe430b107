"""Every exit of BERT-base: time and memory beside one update, and the plainer ways."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from overhead_parts.bert import (
    agree,
    head_everywhere,
    make_batch,
    make_model,
    make_optimizer,
    naive,
    sifter_at,
    update,
)
from overhead_parts.memory import in_fresh_process, peak_growth
from overhead_parts.timing import RESULTS, circumstances, ratios, seconds_of, timed_in_turns
from sifting import cost
from sifting.files import write_json

EXITS = (1, 2, 3, 6, 12)
FIRST_EXIT_AT_MOST = 0.075  # of an update
LIMIT_AT_MOST = 1.15  # times the ratio of FLOPs
MEMORY_AT_MOST = 0.25  # of an update's peak
CASES = ("update", "sifter-1", "sifter-12", "everywhere-1", "naive")

PLAIN = ("everywhere", "naive")  # what scoring is compared with
PLAIN_EVERY = 3  # rounds


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
    rounds = timed_in_turns(
        cases,
        args.rounds,
        skip=lambda round, name: name.startswith(PLAIN) and round % PLAIN_EVERY > 0,
    )
    labelled = float((candidates["labels"] != -100).float().mean())
    split = {name: statistics.median(part[name] for part in parts) for name in parts[0]}
    return {
        "rounds": rounds,
        "update": split,
        "labelled": labelled,
        "scores_differ_by": difference,
    }


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
        command = [sys.argv[0], "--memory-case", case]
        for name in ("score", "length", "batch", "labelled", "dropout", "threads"):
            command += [f"--{name}", str(getattr(args, name))]
        found[case] = json.loads(in_fresh_process(command))
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


def main(argv: list[str], description: str) -> int:
    """Time and memory of every exit, beside the plainer ways."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
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
    args = parser.parse_args(argv)
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
            **circumstances(args.threads, load),
            "settings": {
                name: getattr(args, name)
                for name in ("score", "length", "batch", "labelled", "dropout", "rounds")
            },
            **found,
        },
    )
    print(f"\nwritten to {path}")
    return int(args.strict and not all(check["pass"] for check in found["checks"].values()))
