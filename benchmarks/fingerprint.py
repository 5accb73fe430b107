"""A fingerprint of the library's behaviour, to compare before and after a redesign.

    python benchmarks/fingerprint.py --write FILE             # before
    python benchmarks/fingerprint.py --check FILE             # after; names what differs
    python benchmarks/fingerprint.py --check FILE --only 'plain/*'

For each setting, hashes of what was trained, weights, losses, scores, the final model, states and
run folders, with a few readable numbers beside them. FILE is by default
benchmarks/results/fingerprint.json. Names of fields do not count, nor do clocks; what may move to
another module is listed in `fingerprints/names.py`, the one place to edit.

The settings, by the first part of their name: `plain/`, `select/` and `resume/` are loops in one
process, `trainer/`, `accelerate/` and `lightning/` those trainers, `ranks/` two processes under
torchrun, and `commands/` the `sift` command. The hashes are of exact bits: they hold for one machine
and one version of torch, with one thread.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

# before torch is imported, here and in every process that is started
os.environ |= {
    "OMP_NUM_THREADS": "1",
    "MKL_CBWR": "COMPATIBLE",  # sums do not depend on where in memory a tensor lies
    "HF_HUB_OFFLINE": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAYON_NUM_THREADS": "1",
    # processes that run in another folder are to import the library that this one does
    "PYTHONPATH": str(
        Path(str(getattr(importlib.util.find_spec("sifting"), "origin", ""))).resolve().parents[1]
    ),
}

import argparse
import fnmatch
import importlib.metadata
import json
import platform
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from fingerprints import commands, ranks
from fingerprints.digest import Result, short

FILE = Path(__file__).resolve().parent / "results" / "fingerprint.json"
DIGITS = 7  # of the readable numbers


def settings() -> Iterable[tuple[str, Callable[[], Result]]]:
    """All settings that run in this process, by name."""
    from fingerprints import loops, trainers  # not in the processes of the command

    yield from loops.settings()
    yield from trainers.settings()


def take(only: str | None) -> dict[str, Any]:
    """Run the settings whose names match, and give what is written."""

    def wanted(name: str) -> bool:
        return only is None or fnmatch.fnmatch(name, only)

    torch.set_num_threads(1)
    found: dict[str, Result] = {}

    def add(name: str, result: Result, begin: float) -> None:
        found[name] = result
        print(f"{name}  {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so few samples prove nothing, and the trainers are chatty
        for name, setting in settings():
            if wanted(name):
                begin = time.monotonic()
                add(name, setting(), begin)
    for group in (ranks, commands):
        begin = time.monotonic()
        for name, result in group.results(wanted, only):
            add(name, result, begin)
    if not found:
        raise SystemExit(f"--only {only!r} matches no setting")
    return {
        "made with": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": importlib.metadata.version("transformers"),
            "machine": platform.machine(),
        },
        "settings": {name: shown(result) for name, result in sorted(found.items())},
    }


def shown(result: Result) -> dict[str, Any]:
    """One hash of a setting, that of its parts, and its numbers."""
    parts = dict(sorted(result["parts"].items()))
    numbers = {
        name: float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value
        for name, value in result["numbers"].items()
    }
    return {"hash": short(repr(parts).encode()), "parts": parts, "numbers": numbers}


def differences(before: dict[str, Any], now: dict[str, Any], *, all_of: bool) -> list[str]:
    """A line for each setting that is not as it was."""
    old, new = before["settings"], now["settings"]
    lines = []
    for name in sorted({*old, *new} if all_of else new):
        if name not in new or name not in old:
            lines.append(f"{name}: only {'before' if name in old else 'now'}")
        elif old[name] != new[name]:
            a, b = ({**which[name]["parts"], **which[name]["numbers"]} for which in (old, new))
            changed = [
                f"{key} {a.get(key)} → {b.get(key)}"
                for key in {**a, **b}
                if a.get(key) != b.get(key)
            ]
            lines.append(f"{name}: {', '.join(changed)}")
    return lines


def main(argv: list[str]) -> int:
    """Write a fingerprint, or compare with one."""
    if argv[:1] == ["--sift"]:  # in a process that `commands` started
        return commands.main(argv[1:])
    if argv[:1] == ["--rank"]:  # under torchrun
        ranks.main(argv[1], argv[2])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", type=Path, nargs="?", const=FILE, metavar="FILE")
    parser.add_argument("--check", type=Path, nargs="?", const=FILE, metavar="FILE")
    parser.add_argument("--only", metavar="PATTERN", help="settings to run, e.g. 'ranks/*'")
    args = parser.parse_args(argv)
    if (args.write is None) == (args.check is None):
        parser.error("give one of --write and --check")
    before = None if args.check is None else json.loads(args.check.read_text(encoding="utf-8"))
    now = take(args.only)
    if before is None:
        args.write.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
        print(f"{len(now['settings'])} settings written to {args.write}")
        return 0
    if before["made with"] != now["made with"]:
        print(f"made with {before['made with']}, and compared with {now['made with']}")
    lines = differences(before, now, all_of=args.only is None)
    print("\n".join([*lines, f"{len(lines)} differences in {len(now['settings'])} settings"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
