"""`python -m tests.fuzz --examples 100000`: generated cases of every kind, as many as wanted."""

from __future__ import annotations

import argparse
import importlib
import logging
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
    logging.getLogger("sifting").setLevel("ERROR")
    failed = False
    for name, kind in sorted(fuzz.REGISTERED.items()):
        if args.only not in (None, name):
            continue
        begin = time.process_time()
        outcomes, failures = kind.sweep(examples=args.examples, start=start)
        counts = ", ".join(
            f"{outcomes[outcome]} {outcome}" for outcome in ("right", "refused", "wrong", "crashed")
        )
        for failure in failures:
            print(failure)
        print(f"{name}: {counts} ({time.process_time() - begin:.0f} s of CPU)", flush=True)
        failed |= bool(failures)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
