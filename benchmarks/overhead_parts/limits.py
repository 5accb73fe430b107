"""`overhead.py limits`: scoring less of each candidate, what it costs and what it still tells.

    python benchmarks/overhead.py limits                           # every row, about half an hour
    python benchmarks/overhead.py limits --resume                  # those that an interrupted run has not measured
    python benchmarks/overhead.py limits --only bert-128 memory    # some
    python benchmarks/overhead.py limits --quick                   # small models: to see that it runs

Cost: processor time of choosing n of 2n candidates over that of one update on n, in interleaved rounds on
one thread, so that other processes disturb neither much; a ratio is taken within its round, and the median
over rounds is reported. Models whose cost is measured have fresh weights: arithmetic takes as long. `ahead`
alone goes by the clock on the wall, and wants a machine on which nothing else runs.
Quality: on models that have learned from real text or images, on candidates not trained before: Spearman's
correlation with the scores of exit 1 as they are without any of this, recall of the exact top half, and μ, the
share of the loss that the kept half carries.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from overhead_parts import beside, figure, language, large, ranking, remembering, targets, vision
from overhead_parts.timing import RESULTS, circumstances
from sifting.files import write_json

ROWS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "bert-128": lambda args: language.bert_costs(args, length=128, batch=args.batch),
    "bert-512": lambda args: language.bert_costs(args, length=512, batch=max(1, args.batch // 4)),
    "memory": remembering.memory_cost,
    "ahead": beside.ahead,
    "llama": large.llama,
    "resnet": vision.resnet,
    "ranking": ranking.ranking,  # quality on text, for the rows of BERT-base
    "decoder": ranking.decoder,  # the same for the row of Llama
}
PLACE = RESULTS / "limits.json"


def main(argv: list[str]) -> int:
    """Measure the rows asked for, and put them into the file beside those measured before."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--resume", action="store_true", help="continue with the run in the file")
    parser.add_argument("--rounds", type=int, default=5, help="at most 3 of them for llama")
    parser.add_argument(
        "--batch", type=int, default=8, help="n of BERT-base; a quarter at length 512"
    )
    parser.add_argument(
        "--updates", type=int, default=1000, help="that a model learns before it ranks"
    )
    parser.add_argument("--quick", action="store_true", help="small, and to a file of its own")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SIFT_DATA", "data")))
    parser.add_argument("--json", type=Path, help=f"by default {PLACE.name} among the results")
    parser.add_argument("--memory-case", choices=large.CASES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    args.layers = 1 if args.quick else 12
    if args.quick:
        args.rounds = min(args.rounds, 2)
    if args.memory_case:
        return large.memory_case(args.memory_case, quick=args.quick)
    place = args.json or (
        Path(tempfile.gettempdir()) / "limits-quick.json" if args.quick else PLACE
    )
    known = _read(place)
    run = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    if args.resume and known:
        run = max(row.get("run", "") for row in known.values())
    for name in args.only:
        if args.resume and known.get(name, {}).get("run") == run:
            print(f"{name}: measured already in the run of {run}", file=sys.stderr)
            continue
        known = _measured(name, args, argv, place, run)
    if place == PLACE and {"bert-128", "ranking"} <= set(known):
        figure.draw()
    return targets.report(known)


def _measured(
    name: str, args: argparse.Namespace, argv: list[str], place: Path, run: str
) -> dict[str, Any]:
    """Measure a row and write it; gives all that the file holds then."""
    load, begin = os.getloadavg(), time.perf_counter()
    found = ROWS[name](args)
    known = _read(place)
    known[name] = {
        "command": " ".join(
            ["python benchmarks/overhead.py limits --only", name, *_settings(argv)]
        ),
        "run": run,
        "took_seconds": time.perf_counter() - begin,
        **circumstances(1, load),
        **found,
    }
    write_json(place, known)
    print(f"{name}: written to {place}", file=sys.stderr)
    return known


def _read(place: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
    return found


def _settings(argv: list[str]) -> list[str]:
    """The numbers that a command was given, without the place of its data."""
    kept = ["--quick"] if "--quick" in argv else []
    for flag in ("--rounds", "--batch", "--updates"):
        if flag in argv:
            kept += [flag, argv[argv.index(flag) + 1]]
    return kept
