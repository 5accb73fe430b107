"""Write the README's tables from the results in `benchmarks/results`.

    python benchmarks/tables.py            # rewrites README.md between its markers
    python benchmarks/tables.py --check    # says what is out of date, and exits 1

A figure is stated once, in the file that its command wrote; the README only repeats it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"


def read(name: str) -> dict[str, Any]:
    """One file of results."""
    content: dict[str, Any] = json.loads((RESULTS / name).read_text(encoding="utf-8"))
    return content


def overhead() -> str:
    """Scoring time and memory beside an update, by exit."""
    results = {score: read(f"overhead-{score}-128.json") for score in ("loss", "entropy")}
    loss = results["loss"]
    lines = [
        "| exit | loss | entropy | FLOP ratio | head everywhere | whole model | paper (A100, length 512) |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, other in zip(loss["rows"], results["entropy"]["rows"], strict=True):
        lines.append(
            f"| {row['exit']} | {row['sifter']:.3f} | {other['sifter']:.3f} | {row['flops']:.3f} | "
            f"{row['head_everywhere']:.3f} | {row['whole_model']:.3f} | {row['paper_512']:.3f} |"
        )
    commands = " and ".join(f"`{result['command']}`" for result in results.values())
    machine, versions, rounds = loss["machine"], loss["versions"], loss["settings"]["rounds"]
    made = (
        f"Made by {commands} ({machine['threads']} threads of an {machine['processor']}, torch "
        f"{versions['torch']}; medians over {rounds} interleaved rounds). The last three columns are for "
        "the loss."
    )
    return "\n".join([*lines, "", made])


def demo() -> str:
    """The demo's arms."""
    result = read("demo.json")
    lines = [
        "| arm | test accuracy % | time ÷ baseline | rho_approx | recall |",
        "|---|---|---|---|---|",
    ]
    base = sum(run["seconds"] for run in result["runs"]["baseline"])
    for name, runs in result["runs"].items():
        accuracies = [100 * run["accuracy"] for run in runs]
        stats = [run["stats"] for run in runs if run["stats"] is not None]
        quality = [
            f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}" if values else "–"
            for values in ([s[key] for s in stats] for key in ("rho_approx", "recall"))
        ]
        lines.append(
            f"| {name} | {statistics.mean(accuracies):.2f} ± {statistics.stdev(accuracies):.2f} | "
            f"{sum(run['seconds'] for run in runs) / base:.2f} | {' | '.join(quality)} |"
        )
    verdicts = "\n".join(f"- {line}" for line in result["verdict"])
    return "\n".join([*lines, "", f"Made by `{result['command']}`:", "", verdicts])


TABLES: dict[str, Callable[[], str]] = {"overhead": overhead, "demo": demo}


def written(text: str) -> str:
    """The README with its tables as the results have them."""
    for name, make in TABLES.items():
        start, end = f"<!-- {name}: benchmarks/tables.py -->", f"<!-- end of {name} -->"
        before, found, rest = text.partition(start)
        _, closed, after = rest.partition(end)
        if not found or not closed:
            raise SystemExit(f"README.md has no markers for {name!r}: {start} … {end}")
        text = f"{before}{start}\n{make()}\n{end}{after}"
    return text


def main() -> int:
    """Rewrite the README, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    fresh = written(text)
    if args.check and fresh != text:
        print("README.md is out of date: run python benchmarks/tables.py")
        return 1
    path.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
