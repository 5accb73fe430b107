"""From the runs of a task to one file of results, which is what the pages are made of."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sifting import checksums
from sifting.bench import protocol
from sifting.bench.running import ADVICE, FORMAT, NAME, check_task
from sifting.training.run_folder import Run, RunError, read_run
from sifting.verdict import judge
from sifting.verdict.curves import curve_of
from sifting.verdict.intervals import ratio_of

RESULTS = Path("benchmarks/results/bench")
DIGITS = 5  # of numbers that are kept
ZERO = 1e-9  # a slope that is rounding
FAR = 1.2  # beyond the shortest and longest baseline by so much, the scale ends
LENGTHS = {
    "baseline-60": 0.6,
    "baseline-75": 0.75,
    "baseline-90": 0.9,
    "baseline": 1.0,
    "baseline-133": 1.33,
}


def keep_results(runs: Path, out: Path) -> list[Path]:
    """Write a file for each task that has been run; returns them.

    Where a task was only advised on here, the advice joins what was measured before.

    Args:
        runs: folder of `sift bench`.
        out: folder of the results.
    """
    written = []
    for note in sorted(runs.glob(f"*/{NAME}")):
        found = result_of(note.parent) or _advised(note.parent, out)
        if found is None:
            continue
        out.mkdir(parents=True, exist_ok=True)
        path = out / f"{found['task']}.json"
        checksums.write_json(path, found)
        written.append(path)
    return written


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """The results by task."""
    found = {}
    for path in sorted(folder.glob("[!_]*.json")):
        content = checksums.read_json(path, required=False)
        if content.get("format") != FORMAT:
            raise RunError(
                f"{path} has format {content.get('format')!r}; this release reads {FORMAT}"
            )
        if not isinstance(content.get("task"), str):
            raise RunError(f"{path} is damaged: it names no task")
        check_task(path, content, path.stem)
        found[content["task"]] = content
    return found


def result_of(folder: Path) -> dict[str, Any] | None:
    """The results of a task; None where no run of its comparison is over.

    Args:
        folder: of the task.
    """
    note = checksums.read_json(folder / NAME, required=False)
    runs = [
        read_run(path.parent) for path in sorted((folder / "compared").glob("*/seed-*/run.json"))
    ]
    runs = [run for run in runs if run.status in ("finished", "failed")]
    if not any(run.config["arm"] == protocol.BASELINE for run in runs):
        return None
    check_task(folder / NAME, note, folder.name)  # which names the file that is written
    manifest = checksums.read_json(folder / "compared" / "comparison.json", required=False)
    _require(folder / NAME, note, "about", "command", "asked", "waited")
    _require(folder / "compared" / "comparison.json", manifest, "arms")
    by_arm: dict[str, list[Run]] = {}
    for run in runs:
        by_arm.setdefault(run.config["arm"], []).append(run)
    judged = judge([run for run in runs if run.config["arm"] not in protocol.LONGER])
    verdict = judged.to_dict()
    loads = [line["load"] for run in runs for line in run.metrics if "load" in line]
    environment = runs[0].environment
    finals = {arm: _finals(of_arm, judged.metric) for arm, of_arm in by_arm.items()}
    found: dict[str, Any] = rounded(
        {
            "format": FORMAT,
            **{key: note[key] for key in ("task", "about", "command", "asked", "waited")},
            "rates": note.get("rates", {}),
            "tried": note.get("tried", {}),
            "tuned_at": note.get("tuned_at", note["asked"]["updates"]),
            "versions": environment.get("versions"),
            "machine": {key: environment.get(key) for key in ("processor", "cores")},
            "load": {"median": statistics.median(loads), "largest": max(loads)} if loads else None,
            "metric": judged.metric,
            "percent": judged.percent,
            "lower_is_better": judged.lower_is_better,
            "target": judged.target,
            "outcome": verdict["outcome"],
            "overall": verdict["overall"],
            "arms": {arm["name"]: _metrics_of(arm) for arm in verdict["arms"]},
            "lengths": _lengths(runs),
            "plan": {
                arm: {
                    "updates": row["updates"],
                    "made": _updates_made(by_arm[arm]),
                    "seconds": row["seconds"],
                }
                for arm, row in manifest["arms"].items()
                if arm in by_arm
            },
            "finals": finals,
            "worth": worth(finals, lower_is_better=judged.lower_is_better),
            "curves": {arm: _curve(of_arm) for arm, of_arm in by_arm.items()},
            "quality": {
                arm: quality for arm, of_arm in by_arm.items() if (quality := _quality(of_arm))
            },
            "advice": _advice(folder / ADVICE),
        }
    )
    return found


def _advised(folder: Path, out: Path) -> dict[str, Any] | None:
    """The results that a task has already, with advice of today; None where either is missing."""
    advice, path = _advice(folder / ADVICE), out / f"{folder.name}.json"
    if advice is None or not path.exists():
        return None
    asked = checksums.read_json(folder / NAME, required=False)["asked"]
    known = checksums.read_json(path, required=False)
    if any(known["asked"][key] != asked[key] for key in ("size", "updates")):
        raise RunError(
            f"{folder} has advice on {asked['updates']} updates ({asked['size']}), and {path} was measured with "
            f"{known['asked']['updates']} ({known['asked']['size']}): ask for advice on these"
        )
    return {**known, "advice": rounded(advice)}


def _advice(path: Path) -> dict[str, Any] | None:
    """What was predicted: savings by arm, and the sentence; None where nobody asked."""
    if not path.exists():
        return None
    found = checksums.read_json(path, required=False)
    check_task(path, found, path.parent.name, key="target")
    _require(path, found, "arms", "pays", "sentence")
    return {"arms": found["arms"], "pays": found["pays"], "sentence": found["sentence"]}


def _require(path: Path, content: Mapping[str, Any], *names: str) -> None:
    """Raise unless a file holds what is read from it."""
    missing = [name for name in names if name not in content]
    if missing:
        raise RunError(f"{path} is damaged: it has no {missing[0]}")


def _metrics_of(arm: Mapping[str, Any]) -> dict[str, Any]:
    """What a page says of an arm."""
    kept = ("role", "runs", "finished", "failed", "mean", "std", "reached")
    estimates = ("difference", "control_difference", "time_ratio", "cost")
    return {**{k: arm[k] for k in kept}, **{k: arm[k] for k in estimates}, "p": arm["p"]}


def _lengths(runs: Sequence[Run]) -> dict[str, Any]:
    """The baselines of other lengths beside the baseline: no arms, but what arms have to beat."""
    kept = [run for run in runs if run.config["arm"] in LENGTHS]
    if not any(run.config["arm"] in protocol.LONGER for run in kept):
        return {}
    found = {arm["name"]: _metrics_of(arm) for arm in judge(kept).to_dict()["arms"]}
    return {name: figures for name, figures in found.items() if name in protocol.LONGER}


def _updates_made(runs: Sequence[Run]) -> float | None:
    """By the runs that ended, on average: an autopilot may end sooner than was planned."""
    made = [run.summary["updates"] for run in runs if run.summary and "updates" in run.summary]
    return statistics.fmean(made) if made else None


def _finals(runs: Sequence[Run], metric: str) -> dict[str, float]:
    found = {}
    for run in runs:
        value = ((run.summary or {}).get("final") or {}).get(metric)
        if run.status == "finished" and isinstance(value, int | float):
            found[str(run.config["seed"])] = float(value)
    return found


def worth(
    finals: Mapping[str, Mapping[str, float]], *, lower_is_better: bool
) -> dict[str, dict[str, Any]]:
    """Time ÷ that of a baseline which ends as well: by how good baselines of other lengths become.

    >>> base = {name: {"0": 0.7 + 0.1 * math.log(length)} for name, length in LENGTHS.items()}
    >>> found = worth({**base, "memory": {"0": 0.7 + 0.1 * math.log(1.25)}}, lower_is_better=False)
    >>> round(found["memory"]["value"], 2)
    0.8

    A straight line through the metrics of those baselines over the logarithm of their length gives
    what a difference is worth. Nothing where longer baselines are not better. Beyond `FAR` times the
    lengths that were run, the end of the scale stands, and `at_the_end` counts the seeds there.

    Args:
        finals: the metric at the end, by arm and seed.
        lower_is_better: of the metric.
    """
    sign = -1.0 if lower_is_better else 1.0
    means = {
        math.log(LENGTHS[arm]): sign * statistics.fmean(by_seed.values())
        for arm, by_seed in finals.items()
        if arm in LENGTHS and by_seed
    }
    if len(means) < 3 or 0.0 not in means:
        return {}
    slope = float(np.polyfit(list(means), list(means.values()), 1)[0])
    if slope <= ZERO:
        return {}
    low, high = min(means) - math.log(FAR), max(means) + math.log(FAR)
    base, found = finals[protocol.BASELINE], {}
    for arm, by_seed in finals.items():
        seeds = sorted(set(by_seed) & set(base))
        if arm in LENGTHS or not seeds:
            continue
        logs = [sign * (by_seed[seed] - base[seed]) / slope for seed in seeds]
        lengths = [math.exp(min(max(log, low), high)) for log in logs]
        estimate = ratio_of([1.0] * len(lengths), lengths)
        found[arm] = {
            **estimate.to_dict(),
            "at_the_end": sum(not low < log < high for log in logs),
        }
    return found


def _curve(runs: Sequence[Run]) -> dict[str, list[float]]:
    """Mean metric over reference time, of the seeds that have it all."""
    curves = [curve_of(run) for run in runs if run.status == "finished"]
    curves = [curve for curve in curves if len(curve) and curve.reference is not None]
    count = min((len(curve) for curve in curves), default=0)
    if not count:
        return {"seconds": [], "updates": [], "metric": []}
    return {
        "seconds": [float(np.mean([c.axis("reference")[i] for c in curves])) for i in range(count)],
        "updates": [float(np.mean([c.steps[i] for c in curves])) for i in range(count)],
        "metric": [float(np.mean([c.values[i] for c in curves])) for i in range(count)],
    }


def _quality(runs: Sequence[Run]) -> dict[str, Any]:
    """What the audits said over training, in four parts of the run: means over seeds.

    Whatever the log has of an arm's choices is kept: ρ_approx, recall, and what an autopilot knew when
    it decided.
    """
    if runs[0].config.get("selector") is None:
        return {}
    parts: dict[str, list[list[float]]] = {}
    for run in runs:
        lines = [(line["step"], found) for line in run.metrics if (found := _choice(line))]
        last = max((step for step, _ in lines), default=0)
        for step, found in lines:
            place = min(3, 4 * step // (last + 1))
            for name, value in found.items():
                if isinstance(value, int | float) and not isinstance(value, bool):
                    parts.setdefault(name, [[] for _ in range(4)])[place].append(float(value))
    return {
        name: [statistics.fmean(values) if values else None for values in places]
        for name, places in parts.items()
    }


def _choice(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a line of the log says of choices: an audit, or an autopilot's word on one in two."""
    if line["kind"] == "train":
        return line.get("selection") or {}
    halves = [one for one in line.get("judged", ()) if one.get("ratio") == 2]
    known: Mapping[str, Any] = max(halves, key=lambda one: "share" in one, default={})
    names = {"kept_loss": "kept_loss", "agreement": "agreement", "share": "learning_share"}
    return {name: known[key] for key, name in names.items() if key in known}


def rounded(value: Any) -> Any:
    """Plain values with floats of a few digits: what is committed should be readable.

    >>> rounded({"a": [1 / 3, 2, None]})
    {'a': [0.33333, 2, None]}
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(one) for one in value]
    return value
