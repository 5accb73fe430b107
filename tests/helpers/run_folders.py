"""Runs made up for the tests of the verdict and the report, in memory or on disk."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from sifting import checksums
from sifting.training.run_folder import FORMAT, LOGS, Run

SELECTORS: dict[str, dict[str, Any] | None] = {
    "baseline": None,
    "random-keep": {"exit": "last", "score": "loss", "policy": "random", "keep": 0.5},
    "sift": {"exit": 1, "score": "loss", "policy": "top", "keep": 0.5, "explore": 0.0},
    "tuned": {"exit": "tuned", "score": "entropy", "policy": "top", "keep": 0.5, "explore": 0.25},
}
SPEEDS = {"baseline": 1.0, "random-keep": 1.0, "sift": 1.3}


def made(
    arm: str,
    seed: int,
    *,
    speed: float = 1.0,
    scoring: float = 0.0,
    noise: float = 0.0,
    reference: bool = False,
    points: int = 20,
    status: str = "finished",
    ceiling: float = 0.8,
    **config: Any,
) -> Run:
    """A run whose accuracy rises to a ceiling, `speed` times as fast as the plain one's.

    Args:
        scoring: its cost as a share of an update's.
        noise: relative noise of the speed, and of each evaluation in the same measure over 10.
    """
    rng = np.random.default_rng([seed, sum(map(ord, arm))])
    speed *= float(np.exp(noise * rng.standard_normal()))
    selector = SELECTORS.get(arm, {"exit": 2, "score": "entropy", "policy": "top", "keep": 0.5})
    metrics: list[dict[str, Any]] = []
    for n in range(1, points + 1):
        step, t = 50 * n, n / points
        accuracy = ceiling * (1 - np.exp(-3 * speed * t)) + noise / 10 * rng.standard_normal()
        clocks = {
            "data": 0.001 * step,
            "scoring": scoring * 0.05 * step,
            "auditing": 0.0,
            "forward": 0.02 * step,
            "backward": 0.03 * step,
            "optimizer": 0.002 * step,
            "evaluation": 0.5 * n,
        }
        common = {
            "step": step,
            "candidates_seen": (32 if selector is None else 64) * step,
            "samples_trained": 32 * step,
            "seconds": clocks,
            "load": 0.5,
        }
        if reference:
            common["reference"] = {name: 0.9 * value for name, value in clocks.items()}
        quality = {"recall": None, "rho_approx": None, "rank_correlation": None}
        if selector is not None:
            quality = {
                "recall": 0.6 - 0.1 * t,
                "rho_approx": 1.3 - 0.4 * t,
                "rank_correlation": 0.3,
            }
        loss = 2.3 * np.exp(-2 * t)
        metrics.append({"kind": "train", **common, "loss": loss, "lr": 0.1, "selection": quality})
        metrics.append({"kind": "eval", **common, "accuracy": float(accuracy)})
    settings = {
        "recipe": "made",
        "arm": arm,
        "seed": seed,
        "metric": "accuracy",
        "lower_is_better": False,
        "budget": {"kind": "updates", "amount": 50 * points},
        "selector": selector,
        **config,
    }
    last = metrics[-1]
    summary = {
        "updates": 50 * points,
        "planned": 50 * points,
        "stopped_by": None,
        "seconds": last["seconds"],
        "final": {"accuracy": last["accuracy"]},
        "sifting": {"selections": 0 if selector is None else 50 * points, "steps": 50 * points},
    }
    environment = {
        "versions": {"python": "3.11.2", "torch": "2.13.0"},
        "system": "Linux",
        "processor": "x86_64",
        "cores": 2,
        "load": [0.5, 0.4, 0.3],
        "command": ["sift", "compare"],
    }
    return Run(Path(f"{arm}-seed{seed}"), status, settings, environment, metrics, summary)


def write(run: Run, parent: Path) -> Path:
    """Write a run as a folder of the first format, which has no checksums; `seal` makes them."""
    path = parent / run.path.name
    path.mkdir(parents=True)
    state = {"format": 1, "status": run.status, "started": "2026-01-01T00:00:00Z"}
    (path / "run.json").write_text(json.dumps(state))
    (path / "config.json").write_text(json.dumps(run.config))
    (path / "environment.json").write_text(json.dumps(run.environment))
    (path / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in run.metrics))
    if run.summary is not None and run.status != "running":
        (path / "summary.json").write_text(json.dumps(run.summary))
    return path


def write_comparison(folder: Path) -> Path:
    """Write three seeds of a baseline, a control and an arm that learns faster; the folder."""
    for arm, speed in SPEEDS.items():
        for seed in range(3):
            write(made(arm, seed, speed=speed, scoring=0.1, noise=0.01, points=8), folder)
    return folder


def seal(path: Path) -> None:
    """Give a run the checksums that it would have if it had been written as it is."""
    try:
        about = json.loads((path / "run.json").read_text())
    except (OSError, ValueError, RecursionError):
        return
    if not isinstance(about, dict):
        return
    about.pop("checksum", None)
    about["files"] = {
        file.name: checksums.digest_of_file(file)
        for file in path.glob("*.json")
        if file.is_file() and file.name != "run.json"
    }
    about["logs"] = {}
    for name in LOGS:
        log = checksums.Growing()
        if (path / name).is_file():
            log.catch_up(path / name)
        about["logs"][name] = log.said()
    if about.get("format") == 1:
        about["format"] = FORMAT
    checksums.write_json(path / "run.json", about)
