"""Interruptions, damaged files and failing writes, by the hundred; each end is right, or refused by name.

    python -m tests.chaos --out FOLDER [--seed 0]        # continues where it was stopped
    python -m tests.chaos --out FOLDER --short           # a part of a few seconds

Every case is made from the seed and its number. Prints a table of counts; exits 1 if a case is wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from sifting.markdown import table
from tests.chaos.cases import Site
from tests.chaos.runs import REPORT, prepare
from tests.chaos.writes import cases, interruptions


def counts(results: list[dict[str, Any]]) -> list[list[str]]:
    """Rows of the table: what was attacked, how often, and how it ended."""
    found: dict[str, Counter[str]] = {}
    for result in results:
        kind, label = result["case"].split()[0], ""
        if kind == "kill":
            for name in result["signals"]:
                label = f"{name}, then resumed"
                found.setdefault(label, Counter())["wrong" if result["wrong"] else "right"] += 1
            continue
        if kind == "damage":
            label = f"file {result['way']}, of {WORDS[result['of']]}"
        else:
            label = f"a write fails with {result['error']}, then resumed"
        found.setdefault(label, Counter())["wrong" if result["wrong"] else result["how"]] += 1
    order = sorted(
        found, key=lambda label: (label.startswith("file"), label.startswith("a write"), label)
    )
    return [
        [label, str(sum(found[label].values())), *(str(found[label][how]) for how in HOWS)]
        for label in order
    ]


DAMAGES = 7 * 6 * 20  # targets, ways, and files of the largest: every file in every way
HOWS = ("right", "refused", "wrong")
WORDS = {"whole": "a finished run", "interrupted": "an interrupted run", "cache": "the cache"}


def main() -> int:
    """Run what is left, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kills", type=int, default=200, help="interruptions, at least")
    parser.add_argument("--damages", type=int, default=DAMAGES)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--only", choices=["kill", "damage", "write"])
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    args.out.mkdir(parents=True, exist_ok=True)
    prepare(args.out.absolute())
    site = Site(args.out.absolute(), args.seed, short=args.short)
    path = args.out / f"results-{args.seed}.jsonl"
    results = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    done = {result["case"] for result in results}
    print(f"seed {args.seed}: {len(done)} cases are done", flush=True)
    size: dict[str, Any] = {
        "kills": args.kills,
        "damages": args.damages,
        "writes": ("mine", "compare", "bert", REPORT),
        "some": None,
    }
    if args.short:
        size = {"kills": 2, "damages": 12, "writes": ("mine", REPORT), "some": 3}
    if args.only:
        size |= {
            n: 0 if n != "writes" else ()
            for n in ("kills", "damages", "writes")
            if not n.startswith(args.only)
        }
    for name, attack in cases(site, results, **size):
        if name in done:
            continue
        result = {"case": name, **attack()}
        results.append(result)
        with path.open("a") as file:
            file.write(json.dumps(result) + "\n")
        if result["wrong"]:
            print(f"{name}: {json.dumps(result)}", flush=True)
        else:
            shutil.rmtree(site.work / "cases", ignore_errors=True)
        if len(results) % 20 == 0:
            print(
                f"{len(results)} cases, {sum(bool(r['wrong']) for r in results)} wrong", flush=True
            )
    print(table(["attack", "cases", *HOWS], counts(results)))
    print(f"seed {args.seed}: {told(results)}")
    return int(any(result["wrong"] for result in results))


def told(results: list[dict[str, Any]]) -> str:
    """The counts in a sentence."""
    of: dict[str, list[dict[str, Any]]] = {"kill": [], "damage": [], "write": []}
    for result in results:
        of[result["case"].split()[0]].append(result)
    files = {(result["workload"], result["file"]) for result in of["damage"]}
    writes = Counter(result["workload"] for result in of["write"])
    each = ", ".join(f"{count} of {name}" for name, count in writes.items())
    return (
        f"{interruptions(results)} interruptions in {len(of['kill'])} chains, {len(of['damage'])} damaged files "
        f"({len(files)} different ones), {len(of['write'])} failed writes ({each}); "
        f"{sum(bool(result['wrong']) for result in results)} wrong"
    )


if __name__ == "__main__":
    raise SystemExit(main())
