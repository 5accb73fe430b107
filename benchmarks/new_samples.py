"""The share of progress by new samples, beside that by held-out ones, along the same plain run.

    python benchmarks/new_samples.py                      Fashion-MNIST, clean and noisy, and CIFAR-10
    python benchmarks/new_samples.py fashion:CLEAN --part 0.5

Each task is trained plainly twice with the autopilot looking on and doing nothing: once with its
held-out samples, once without, when it goes by samples that come for the first time. Both runs train
the same weights, so that what differs is the estimate. One seed; accuracies and times are not its point.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from sifting import files
from sifting.training.assemble import assemble

TASKS = ("fashion:CLEAN", "fashion:NOISY_20", "cifar:EARLY")
RESULTS = Path(__file__).parent / "results" / "new-samples.json"


def shares(target: str, part: float, *, held_out: bool) -> list[dict[str, float]]:
    """What the autopilot reads at each decision that knows a share."""
    module, name = target.split(":")
    recipe = getattr(importlib.import_module(f"sifting.bench.tasks.{module}"), name)
    config = replace(recipe.presets["full"], arm="auto", evaluations=1)
    problem = recipe.problem(config, recipe.read(config))
    if not held_out:
        problem = replace(problem, held_out=None)
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = assemble(target, config, problem, Path(place) / "run", updates=config.length)
        assert engine.sifter.pilot is not None
        engine.sifter.pilot.acts = False
        engine.watch = lambda record: records.append(dict(record))
        engine.advance(round(part * config.length) + 1)
        engine.finish()
    found: list[dict[str, float]] = []
    for record in records:
        for judged in record.get("judged", ()):
            if judged["ratio"] == 2 and "share" in judged:
                one = {name: round(judged[name], 4) for name in ("share", "error")}
                if not found or {**one, "step": found[-1]["step"]} != found[-1]:
                    found.append({"step": record["batch"], **one})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--part", type=float, default=0.65, help="of the run that is trained")
    parser.add_argument("--json", type=Path, default=RESULTS)
    args = parser.parse_args()
    known = json.loads(args.json.read_text()) if args.json.exists() else {}
    for target in args.tasks:
        by = {
            name: shares(target, args.part, held_out=name == "held out")
            for name in ("held out", "new")
        }
        known[target] = {"part": args.part, **by}
        files.write_json(args.json, known)
        for name, found in by.items():
            line = ", ".join(
                f"{one['step']}: {one['share']:.2f} ± {one['error']:.2f}" for one in found
            )
            print(f"{target}, {name} samples, by step  {line}")


if __name__ == "__main__":
    main()
