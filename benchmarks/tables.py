"""Write the documents' tables from the results in `benchmarks/results`.

    python benchmarks/tables.py            # rewrites the documents between their markers
    python benchmarks/tables.py --check    # says what is out of date, and exits 1

A figure is stated once, in the file that its command wrote; documents only repeat it. A marker
names what to write, e.g. `verdict vision-time`.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from overhead_parts import page
from overhead_parts.page import rows

from sifting.bench import protocol
from sifting.bench.registry import TASKS
from sifting.bench.results import read_results
from sifting.bench.wording import best_of, gap, time_cell

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


def limits(row: str) -> str:
    """What scoring less of each candidate costs and keeps: one row of `limits.json`."""
    return page.of_row(row, read("limits.json"))


def sampling() -> str:
    """The paper's table of sampling time, with forward and backward for comparison."""
    result = read("sampling-128.json")
    timed = result["update"]
    both = timed["forward"] + timed["backward"]
    lines = [
        [
            str(row["exit"]),
            f"{row['seconds']:.2f}",
            f"{row['seconds'] / both:.3f}",
            f"{row['flops']:.3f}",
            f"{row['sifter'] / row['flops']:.2f}",
            f"{row['paper_512']:.3f}",
        ]
        for row in result["rows"]
    ]
    lines += [[name, f"{seconds:.2f}", "", "", "", ""] for name, seconds in timed.items()]
    columns = [
        "exit",
        "seconds",
        "÷ (forward + backward)",
        "FLOP ratio to an update",
        "measured ÷ FLOP ratio",
        "paper, ÷ (forward + backward)",
    ]
    made = (
        f"Made by `{result['command']}`; medians over {len(result['rounds'])} interleaved rounds."
    )
    return f"{rows(columns, lines)}\n\n{made}"


def verdict(name: str) -> str:
    """The arms of a comparison, and what to make of them."""
    result = read(f"{name}.json")
    found, load = result["verdict"], result["load"]
    table = rows(found["table"]["columns"], found["table"]["rows"])
    made = (
        f"Made by `{result['command']}` on {result['machine']['cores']} cores of an "
        f"{result['machine']['processor']}, torch {result['versions']['torch']}; load average while it ran: "
        f"median {load['median']:.1f}, at most {load['largest']:.1f}."
    )
    claim = found["headline"]
    overall = found["overall"].replace(claim, f"**{claim}**", 1)
    return f"{table}\n\n{overall}\n\n{made}"


def sentences(name: str) -> str:
    """A line for each arm of a comparison."""
    return "\n".join(f"- {arm['sentence']}" for arm in read(f"{name}.json")["verdict"]["arms"])


def quality(name: str) -> str:
    """Recall and ρ_approx over training."""
    found = read(f"{name}.json")["quality"]
    samples = next(iter(found.values()))["rho_approx"]["samples"]
    places = sorted({0, len(samples) // 3, 2 * len(samples) // 3, len(samples) - 1})
    lines = []
    for arm, figures in found.items():
        for figure in ("rho_approx", "recall"):
            curve = figures[figure]
            cells = [
                f"{curve['mean'][i]:.2f} ({curve['low'][i]:.2f}–{curve['high'][i]:.2f})"
                for i in places
            ]
            lines.append([arm, figure, *cells])
    return rows(["arm", "", *(f"{samples[i]:,} samples" for i in places)], lines)


def recalibration(name: str) -> str:
    """Accuracy with BatchNorm statistics as trained, and taken again from unselected pictures."""
    lines = []
    for arm, seeds in read(f"{name}.json")["final"].items():
        plain = [100 * final["accuracy"] for final in seeds.values()]
        again = [100 * final["accuracy_recalibrated"] for final in seeds.values()]
        gaps = [b - a for a, b in zip(plain, again, strict=True)]
        lines.append(
            [
                arm,
                f"{statistics.mean(plain):.2f}",
                f"{statistics.mean(again):.2f}",
                f"{statistics.mean(gaps):+.2f} ({min(gaps):+.2f} to {max(gaps):+.2f})",
            ]
        )
    return rows(["arm", "as trained", "recalibrated", "difference (over seeds)"], lines)


def kinds(name: str) -> str:
    """Accuracy of tokens hidden behind [MASK], left as they are, and replaced by another."""
    result = read(f"{name}.json")
    lines = []
    for arm, seeds in result["arms"].items():
        cells = []
        for kind in ("hidden", "left", "replaced"):
            values = [100 * figures[kind] for figures in seeds.values()]
            cells.append(f"{statistics.mean(values):.2f} ({min(values):.2f}–{max(values):.2f})")
        lines.append([arm, *cells])
    table = rows(["arm", "hidden (80 %)", "left (10 %)", "replaced (10 %)"], lines)
    return f"{table}\n\nMade by `{result['command']}`; the least and the largest seed in brackets."


def costs(name: str) -> str:
    """What each arm's operations cost, and the updates that its budget allows."""
    lines = []
    for arm, row in read(f"{name}.json")["plan"].items():
        table = row["table"]
        update = table["forward"] + table["backward"] + table["optimizer"]
        lines.append(
            [
                arm,
                f"{1e3 * update:.1f}",
                f"{1e3 * table['scoring']:.1f}",
                f"{table['scoring'] / update:.2f}",
                f"{row['updates']:,}",
                f"{row['seconds']:.0f}",
            ]
        )
    columns = ["arm", "update, ms", "scoring, ms", "scoring ÷ update", "updates", "seconds"]
    return rows(columns, lines)


def shares() -> str:
    """Shares of progress by new samples and by held-out ones, along the same plain run."""
    lines = []
    for task, found in read("new-samples.json").items():
        for name in ("held out", "new"):
            cells = ", ".join(
                f"{one['step']}: {one['share']:.2f} ± {one['error']:.2f}" for one in found[name]
            )
            lines.append([f"`{task}`", name, cells])
    table = rows(["task", "samples", "step: learning share of one in two by `input`"], lines)
    return f"{table}\n\nMade by `python benchmarks/new_samples.py`, one seed."


def kept() -> str:
    """The share of the loss that each of the autopilot's scorers would keep, along a plain run."""
    lines = []
    for task, found in read("predictor.json").items():
        phases = found["phases"]
        for scorer in sorted({name for phase in phases for name in phase}):
            shares = [f"{phase[scorer]:.2f}" if scorer in phase else "–" for phase in phases]
            lines.append([f"`{task}`, {found['updates']:,} updates", f"`{scorer}`", *shares])
    sixths = [f"{part}/6" for part in range(1, 7)]
    table = rows(["task", "scorer", *sixths], lines)
    return f"{table}\n\nMade by `python benchmarks/predictor.py`, one seed."


def joined() -> str:
    """What rules for joining looks would do with sets of held-out samples, on recorded looks."""
    lines, rules = [], ("added up", "last two", "drift 0.08", "drift 0.12", "drift 0.2")
    for name, found in read("looks.json").items():
        task, seed = name.rsplit("-", 1)
        parts = (found["rules"][rule] for rule in rules)
        cells = [
            f"{100 * one['select']:.0f} %, {100 * one['worth']:+.1f} %".replace("-", "−")
            for one in parts
        ]
        shares = ", ".join("–" if one is None else f"{one[0]:.2f}" for one in found["shares"])
        lines.append([f"`{task}`, seed {seed}", str(found["own"]), *cells, shares])
    return rows(["run", "samples", *rules, "ν of all samples, look by look"], lines)


def pays() -> str:
    """Where it pays: each task of the proving ground in a line."""
    lines = []
    results = read_results(RESULTS / "bench")
    for task in [*(name for name in TASKS if name in results), *sorted(set(results) - set(TASKS))]:
        found = results[task]
        auto, cost = found["arms"][protocol.AUTO], found["arms"][protocol.AUTO]["cost"]
        fixed, paper = best_of(found, protocol.FIXED), best_of(found, protocol.PAPER)
        cut = found.get("lengths", {}).get("baseline-75")
        lines.append(
            [
                f"[{found['about']}](docs/results/bench/{task}.md)",
                time_cell(found, protocol.AUTO),
                gap(found, auto["difference"]),
                "–" if cost is None else f"{cost['value']:.2f}",
                "–" if cut is None else gap(found, cut["difference"]),
                "–" if fixed is None else f"`{fixed}` {time_cell(found, fixed)}",
                "–" if paper is None else gap(found, found["arms"][paper]["difference"]),
            ]
        )
    heads = ["task", "autopilot: time to where the baseline ends", "its end", "its time in all"]
    heads.append("end of the baseline cut to 0.75")
    return rows([*heads, "best fixed arm: time", "end of the paper's exit"], lines)


KINDS: dict[str, Callable[..., str]] = {
    make.__name__: make
    for make in (
        overhead,
        limits,
        sampling,
        verdict,
        sentences,
        quality,
        recalibration,
        kinds,
        costs,
        shares,
        kept,
        joined,
        pays,
    )
}
MARKER = re.compile(
    r"(?P<start><!-- (?P<what>[\w -]+): benchmarks/tables.py -->)\n.*?(?P<end><!-- end of (?P=what) -->)",
    flags=re.DOTALL,
)


def written(text: str) -> str:
    """A document with its tables as the results have them."""

    def fresh(match: re.Match[str]) -> str:
        kind, *names = match["what"].split()
        return f"{match['start']}\n{KINDS[kind](*names)}\n{match['end']}"

    return MARKER.sub(fresh, text)


def main() -> int:
    """Rewrite the documents, or check them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    stale = []
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        text = path.read_text(encoding="utf-8")
        fresh = written(text)
        if fresh == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not args.check:
            path.write_text(fresh, encoding="utf-8")
    if args.check and stale:
        print(f"out of date: {', '.join(stale)}; run python benchmarks/tables.py")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
