"""What each of the autopilot's scorers is worth, fixed at one in two from a tenth of the run on.

    python benchmarks/scorers.py                              Fashion-MNIST, clean and noisy; CIFAR-10
    python benchmarks/scorers.py fashion:CLEAN --seeds 0 1

Equal updates, so that neither costs nor the moment of a decision count: metrics at the end beside the
plain run's. Beside them stands what the autopilot goes by, measured along the plain run: the learning
share of each scorer, and the agreement of what it would keep with the mean gradient. Runs that are in
the file already are not made again.
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
from sifting.autopilot.options import Option, PilotDecision
from sifting.autopilot.pilot import Pilot
from sifting.training.assemble import assemble
from sifting.training.engine import Engine

TASKS = (
    "fashion:CLEAN",
    "fashion:NOISY_5",
    "fashion:NOISY_20",
    "fashion:NOISY_40",
    "cifar:EARLY",
    "cifar:FITTED",
)
SCORERS = ("plain", "input", "predicted")
RESULTS = Path(__file__).parent / "results" / "scorers.json"
FROM = 0.1  # share of the run after which a scorer selects
RATIO = 2
EFFORT = 0.2  # share of the run that looks may take here


def run(target: str, scorer: str, seed: int) -> dict[str, Any]:
    """Metrics at the end of a run that selects by a scorer; along a plain one, what is known of all."""
    module, name = target.split(":")
    recipe = getattr(importlib.import_module(f"sifting.bench.tasks.{module}"), name)
    config = replace(recipe.presets["full"], arm="auto-full", evaluations=1, seed=seed)
    problem = recipe.problem(config, recipe.read(config))
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = assemble(target, config, problem, Path(place) / "run", updates=config.length)
        pilot = engine.sifter.pilot
        assert pilot is not None
        pilot.trials, pilot.held_out.budget, pilot.acts = None, EFFORT, False
        records: list[dict[str, Any]] = []
        engine.watch = lambda record: records.append(dict(record))
        begin = round(FROM * config.length)
        engine.advance(begin + 1)
        if scorer != "plain":
            select(pilot, scorer)
        finish(engine)
    found: dict[str, Any] = {
        "metric": problem.metric,
        "final": dict(engine.progress.last),
        "updates": config.length,
    }
    if scorer == "plain":
        found["looks"] = [look(record) for record in records if record["kind"] == "decision"]
    return found


def select(pilot: Pilot, scorer: str) -> None:
    """Have a scorer choose one in two from now on, whatever is measured."""
    pilot.acts = True
    pilot.decision = PilotDecision(0, Option(scorer, RATIO), "fixed")
    pilot.exit.active = scorer
    pilot._decide = lambda step, size: None  # type: ignore[method-assign]


def finish(engine: Engine) -> None:
    engine.advance(engine.pace.updates)
    engine.finish()


def look(record: dict[str, Any]) -> dict[str, Any]:
    """What was known of every scorer at one in two after a look."""
    shares = {
        one["scorer"]: [one["share"], one["error"]]
        for one in record["shares"]
        if one["ratio"] == RATIO
    }
    agreements = {
        one["scorer"]: one["agreement"]
        for one in record["judged"]
        if one["ratio"] == RATIO and "agreement" in one
    }
    return {"batch": record["batch"], "shares": shares, "agreements": agreements}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--json", type=Path, default=RESULTS)
    args = parser.parse_args()
    known: dict[str, Any] = json.loads(args.json.read_text()) if args.json.exists() else {}
    for target in args.tasks:
        for scorer in SCORERS:
            for seed in args.seeds:
                of_scorer = known.setdefault(target, {}).setdefault(scorer, {})
                if str(seed) in of_scorer:
                    continue
                of_scorer[str(seed)] = found = run(target, scorer, seed)
                files.write_json(args.json, known)
                print(f"{target}, {scorer}, seed {seed}: {found['final']}")


if __name__ == "__main__":
    main()
