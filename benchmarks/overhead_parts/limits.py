"""`overhead.py limits`: scoring less of each candidate, what it costs and what it still tells.

    python benchmarks/overhead.py limits                           # every row
    python benchmarks/overhead.py limits --only bert-128 memory    # some

Cost: processor time of choosing n of 2n candidates over that of one update on n, in interleaved rounds on
one thread, so that other processes disturb neither much; a ratio is taken within its round, and the median
over rounds is reported. Models whose cost is measured have fresh weights: arithmetic takes as long.
Quality: on models that have learned from real text or images, on candidates not trained before: Spearman's
correlation with the scores of exit 1 as they are without any of this, recall of the exact top half, and μ, the
share of the loss that the kept half carries.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from overhead_parts import figure, language, large, vision
from overhead_parts.timing import RESULTS, circumstances
from sifting.files import write_json

ROWS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "ranking": language.ranking,  # quality on text, for the rows of BERT-base
    "bert-128": lambda args: language.bert_costs(args, length=128, batch=args.batch),
    "bert-512": lambda args: language.bert_costs(args, length=512, batch=max(1, args.batch // 4)),
    "memory": language.memory_cost,
    "resnet": vision.resnet,
    "llama": large.llama,
}


def main(argv: list[str]) -> int:
    """Measure the rows asked for, and put them into the file beside those measured before."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--batch", type=int, default=8, help="n of BERT-base; a quarter at length 512"
    )
    parser.add_argument(
        "--updates", type=int, default=1500, help="that models learn before ranking"
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases of BERT-base")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("SIFT_DATA", "data")))
    parser.add_argument("--json", type=Path, default=RESULTS / "limits.json")
    parser.add_argument("--memory-case", choices=large.CASES, help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    if args.memory_case:
        return large.memory_case(args.memory_case)
    for name in args.only:
        load = os.getloadavg()
        found = ROWS[name](args)
        shown = " ".join(part for part in ("limits", "--only", name, *_settings(argv)))
        known = json.loads(args.json.read_text(encoding="utf-8")) if args.json.exists() else {}
        known[name] = {
            "command": f"python benchmarks/overhead.py {shown}",
            **circumstances(1, load),
            **found,
        }
        write_json(args.json, known)
        print(f"{name}: written to {args.json}", file=sys.stderr)
        if args.json == RESULTS / "limits.json" and {"bert-128", "ranking"} <= set(known):
            figure.draw()
    return 0


def _settings(argv: list[str]) -> list[str]:
    """The numbers that a command was given, without the place of its data."""
    kept = ["--quick"] if "--quick" in argv else []
    for flag in ("--rounds", "--batch", "--updates"):
        if flag in argv:
            kept += [flag, argv[argv.index(flag) + 1]]
    return kept
