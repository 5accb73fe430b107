"""`python -m tests.fuzz --examples 100000`: generated cases of every kind, as many as wanted."""

from __future__ import annotations

import argparse
import importlib
import pkgutil
import random
import sys
import time

import torch

import tests.fuzz as fuzz


def main(argv: list[str] | None = None) -> int:
    for module in pkgutil.iter_modules(fuzz.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"tests.fuzz.{module.name}")
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=100_000, help="outcomes of each kind")
    parser.add_argument("--seed", type=int, default=None, help="drawn where none is given")
    parser.add_argument("--only", choices=sorted(fuzz.REGISTERED), help="one kind alone")
    args = parser.parse_args(argv)
    start = random.SystemRandom().randrange(2**32) if args.seed is None else args.seed
    print(f"seed {start}", flush=True)
    torch.set_num_threads(1)
    for name, kind in sorted(fuzz.REGISTERED.items()):
        if args.only not in (None, name):
            continue
        begin = time.perf_counter()
        outcomes = kind.run(examples=args.examples, start=start)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
        print(f"{name}: {counts}, none wrong ({time.perf_counter() - begin:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
