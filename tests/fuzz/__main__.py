"""`python -m tests.fuzz --examples 100000`: generated cases of every kind, as many as wanted.

With `--out FOLDER` it continues where it was stopped, with the seed that it began with; unless the code
has changed since, which is checked from the start.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import logging
import pkgutil
import random
import sys
from collections import Counter
from pathlib import Path

import torch

import sifting
import tests.fuzz as fuzz
from sifting.files import write_json


def main(argv: list[str] | None = None) -> int:
    for module in pkgutil.iter_modules(fuzz.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"tests.fuzz.{module.name}")
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=100_000, help="outcomes of each kind")
    parser.add_argument("--seed", type=int, help="drawn where none is given, nor in the folder")
    parser.add_argument("--only", choices=sorted(fuzz.REGISTERED), help="one kind alone")
    parser.add_argument("--out", type=Path, help="folder that remembers what is done")
    args = parser.parse_args(argv)
    kinds = {k: v for k, v in sorted(fuzz.REGISTERED.items()) if args.only in (None, k)}
    folder = Folder(args.out, args.seed)
    print(f"seed {folder.seed}, code {folder.code}", flush=True)
    done = {name: folder.read(name) for name in kinds}
    while unfinished := [name for name in kinds if done[name].wants_more(args.examples)]:
        for name in unfinished:  # in turns, so that none waits for the others
            kinds[name].go_on(done[name], examples=args.examples, start=folder.seed)
            folder.keep(name, done[name])
            print(f"{name}, round {done[name].rounds}: {done[name]}", flush=True)
    for name, sweep in done.items():
        for failure in sweep.failures:
            print(failure)
        print(f"{name}: {sweep}", flush=True)
    return int(any(sweep.failures for sweep in done.values()))


class Folder:
    """Where sweeps are kept between runs, each with its seed and the code that it is of.

    Args:
        path: of the folder; None for none.
        seed: wanted; None for that of the folder, or one that is drawn.
    """

    def __init__(self, path: Path | None, seed: int | None) -> None:
        self.path, self.code = path, digest()
        noted = None if path is None else path / "seed.json"
        if seed is None and noted is not None and noted.exists():
            seed = int(json.loads(noted.read_text())["seed"])
        self.seed = random.SystemRandom().randrange(2**32) if seed is None else seed
        if noted is not None:
            noted.parent.mkdir(parents=True, exist_ok=True)
            write_json(noted, {"seed": self.seed})

    def _file(self, name: str) -> Path | None:
        return None if self.path is None else self.path / f"{name}-{self.seed}-{self.code}.json"

    def read(self, name: str) -> fuzz.Sweep:
        """What was done of a kind."""
        file = self._file(name)
        if file is None or not file.exists():
            return fuzz.Sweep()
        kept = json.loads(file.read_text())
        return fuzz.Sweep(**{**kept, "outcomes": Counter(kept["outcomes"])})

    def keep(self, name: str, sweep: fuzz.Sweep) -> None:
        """Write down what was done of a kind."""
        file = self._file(name)
        if file is not None:
            write_json(file, vars(sweep))


def digest() -> str:
    """Eight characters that are others when a source of the library, or of its cases, is changed."""
    roots = [Path(str(sifting.__file__)).parent, Path(str(fuzz.__file__)).parent]
    found = hashlib.sha256()
    for source in sorted(file for root in roots for file in root.rglob("*.py")):
        found.update(source.read_bytes())
    return found.hexdigest()[:8]


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.getLogger("sifting").setLevel("ERROR")
    sys.exit(main())
