"""`python -m tests.fuzz --examples 100000`: generated cases of every kind, as many as wanted.

With `--out FOLDER` and a `--seed` it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import pkgutil
import random
import sys
from collections import Counter
from functools import partial
from pathlib import Path

import torch

import tests.fuzz as fuzz
from sifting.files import write_json


def main(argv: list[str] | None = None) -> int:
    for module in pkgutil.iter_modules(fuzz.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"tests.fuzz.{module.name}")
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=100_000, help="outcomes of each kind")
    parser.add_argument("--seed", type=int, default=None, help="drawn where none is given")
    parser.add_argument("--only", choices=sorted(fuzz.REGISTERED), help="one kind alone")
    parser.add_argument("--out", type=Path, help="folder that remembers what is done")
    args = parser.parse_args(argv)
    start = random.SystemRandom().randrange(2**32) if args.seed is None else args.seed
    print(f"seed {start}", flush=True)
    torch.set_num_threads(1)
    logging.getLogger("sifting").setLevel("ERROR")
    failed = False
    for name, kind in sorted(fuzz.REGISTERED.items()):
        if args.only not in (None, name):
            continue
        path = None if args.out is None else args.out / f"fuzz-{name}-{start}.json"
        found = kind.sweep(
            examples=args.examples, start=start, done=_read(path), after=partial(_keep, path)
        )
        counts = ", ".join(
            f"{found.outcomes[outcome]} {outcome}"
            for outcome in ("right", "refused", "wrong", "crashed")
        )
        for failure in found.failures:
            print(failure)
        print(f"{name}: {counts} ({found.seconds:.0f} s of CPU)", flush=True)
        failed |= bool(found.failures)
    return int(failed)


def _read(path: Path | None) -> fuzz.Sweep | None:
    if path is None or not path.exists():
        return None
    kept = json.loads(path.read_text())
    return fuzz.Sweep(**{**kept, "outcomes": Counter(kept["outcomes"])})


def _keep(path: Path | None, done: fuzz.Sweep) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, vars(done))


if __name__ == "__main__":
    sys.exit(main())
