"""Keep what the documents say of a comparison: its verdict, costs and selection quality.

    python benchmarks/keep.py RUNS NAME 'sift compare …'    # writes benchmarks/results/NAME.json

RUNS is the folder that `sift compare` wrote; the command is the one that made it, as a reader would
type it. `benchmarks/tables.py` makes the documents' tables from these files.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sifting.files import write_json
from sifting.training.run_folder import Run, read_run
from sifting.verdict import judge

RESULTS = Path(__file__).resolve().parent / "results"
POINTS = 8  # of each curve


def quality(runs: Sequence[Run], figure: str) -> dict[str, list[float | None]]:
    """A figure of selection quality over training: mean, least and largest over seeds."""
    curves = []
    for run in runs:
        found = [
            (line["samples_trained"], (line.get("selection") or {}).get(figure))
            for line in run.metrics
            if line["kind"] == "train"
        ]
        curves.append([pair for pair in found if pair[1] is not None])
    count = min((len(curve) for curve in curves), default=0)
    places = sorted({round((i + 1) * count / POINTS) - 1 for i in range(POINTS)} - {-1})
    values = [[curve[place][1] for curve in curves] for place in places]
    return {
        "samples": [curves[0][place][0] for place in places],
        "mean": [round(statistics.mean(v), 4) for v in values],
        "low": [round(min(v), 4) for v in values],
        "high": [round(max(v), 4) for v in values],
    }


def summary(folder: Path, command: str) -> dict[str, Any]:
    """The figures of a comparison."""
    record = json.loads((folder / "comparison.json").read_text(encoding="utf-8"))
    runs = [read_run(path.parent) for path in sorted(folder.glob("*/seed-*/run.json"))]
    arms: dict[str, list[Run]] = {}
    for run in runs:
        arms.setdefault(run.config["arm"], []).append(run)
    loads = [line["load"] for run in runs for line in run.metrics if "load" in line]
    environment = runs[0].environment
    return {
        "command": command,
        "versions": environment["versions"],
        "machine": {"processor": environment["processor"], "cores": environment["cores"]},
        "load": {"median": statistics.median(loads), "largest": max(loads)},
        "plan": {
            arm: {"updates": row["updates"], "seconds": row["seconds"], "table": row["table"]}
            for arm, row in record["arms"].items()
        },
        "seconds": {
            arm: {
                clock: round(
                    statistics.mean(run.metrics[-1]["seconds"][clock] for run in of_arm), 3
                )
                for clock in of_arm[0].metrics[-1]["seconds"]
            }
            for arm, of_arm in arms.items()
        },
        "quality": {
            arm: {figure: quality(of_arm, figure) for figure in ("rho_approx", "recall")}
            for arm, of_arm in arms.items()
            if of_arm[0].config["selector"] is not None
        },
        "final": {
            arm: {str(run.config["seed"]): (run.summary or {}).get("final") for run in of_arm}
            for arm, of_arm in arms.items()
        },
        "verdict": judge(runs).to_dict(),
    }


def main() -> None:
    """Write one file of results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", type=Path)
    parser.add_argument("name")
    parser.add_argument("command")
    args = parser.parse_args()
    write_json(RESULTS / f"{args.name}.json", summary(args.runs, args.command))


if __name__ == "__main__":
    main()
