"""What each of the autopilot's scorers would keep of the loss, along a plain run: μ at one in two.

    python benchmarks/predictor.py                    Fashion-MNIST, clean, noisy, and learned by heart
    python benchmarks/predictor.py fashion:CLEAN

The autopilot looks on and does nothing: every few steps it scores the batch that is trained anyway by
what looks at the samples, by memory, and by the predictor of losses that joins them; the exact loss
is that of the training step. One seed; accuracies and times are not its point.
"""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from sifting import files
from sifting.autopilot.evidence import Evidence
from sifting.measure.kept_loss import kept_loss
from sifting.training.assemble import assemble

TASKS = ("fashion:CLEAN", "fashion:NOISY_20", "fashion:BY_HEART")
RESULTS = Path(__file__).parent / "results" / "predictor.json"
PHASES = 6
RATIO = 2


class Noting(Evidence):
    """Evidence that also notes every batch's kept loss."""

    def __init__(self) -> None:
        super().__init__()
        self.noted: list[dict[str, float]] = []

    def add(
        self,
        scores: Mapping[str, Tensor],
        losses_B: Tensor,
        errors_BC: Tensor | None = None,
        features_BH: Tensor | None = None,
    ) -> None:
        scores = {**scores, "exact": losses_B}
        found = {name: float(kept_loss(one, losses_B, RATIO)) for name, one in scores.items()}
        self.noted.append(found)
        super().add(scores, losses_B, errors_BC, features_BH)


def measure(target: str, updates: int | None) -> dict[str, Any]:
    """Mean kept loss of each scorer by sixth of the run."""
    module, name = target.split(":")
    recipe = getattr(importlib.import_module(f"sifting.bench.tasks.{module}"), name)
    config = replace(recipe.presets["full"], arm="auto", evaluations=1)
    if updates is not None:
        config = replace(config, length=updates)
    problem = recipe.problem(config, recipe.read(config))
    evidence = Noting()
    phases: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        engine = assemble(target, config, problem, Path(place) / "run", updates=config.length)
        pilot = engine.sifter.pilot
        assert pilot is not None
        pilot.acts, pilot.evidence = False, evidence
        pilot.pacing.due = lambda step: step % 4 == 0  # type: ignore[method-assign]
        for _ in range(PHASES):
            engine.advance(-(-config.length // PHASES))
            found = defaultdict(list)
            for one in evidence.noted:
                for scorer, share in one.items():
                    found[scorer].append(share)
            evidence.noted = []
            phases.append({name: sum(of) / len(of) for name, of in found.items()})
        engine.finish()
    return {"updates": config.length, "samples": config.samples, "phases": phases}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tasks", nargs="*", default=TASKS)
    parser.add_argument("--updates", type=int, help="of each run; the task's own by default")
    parser.add_argument("--json", type=Path, default=RESULTS)
    args = parser.parse_args()
    known = json.loads(args.json.read_text()) if args.json.exists() else {}
    for target in args.tasks:
        known[target] = found = measure(target, args.updates)
        files.write_json(args.json, known)
        for name in sorted({name for phase in found["phases"] for name in phase}):
            shares = ", ".join(f"{phase.get(name, float('nan')):.2f}" for phase in found["phases"])
            print(f"{target}, μ({RATIO}) of {name} by sixth of the run: {shares}")


if __name__ == "__main__":
    main()
