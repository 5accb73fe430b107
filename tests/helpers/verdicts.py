"""Comparisons made up so that each reason for a verdict comes out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sifting.training.run_folder import Run
from sifting.verdict import Verdict, judge
from tests.helpers.run_folders import made

SECONDS = {"kind": "seconds", "amount": 60}
UPDATES = {"kind": "updates", "amount": 60}
PLAIN = ([0.600, 0.610, 0.605], [1.0, 1.0, 1.0])  # a baseline: final metrics and paces by seed


def ending(
    arm: str, finals: list[float], *, pace: list[float], budget: dict[str, Any]
) -> list[Run]:
    """Runs with given final metrics, which take `pace` of the usual time."""
    runs = []
    for seed, (final, slow) in enumerate(zip(finals, pace, strict=True)):
        run = made(arm, seed, points=10, budget=budget)
        log = []
        for record in run.metrics:
            share = record["step"] / 500
            clocks = {k: slow * v for k, v in record["seconds"].items()}
            log.append({**record, "seconds": clocks, "accuracy": final * share**0.5})
        runs.append(replace(run, metrics=log))
    return runs


def comparison(
    budget: dict[str, Any],
    target: float | None = None,
    **arms: tuple[list[float], list[float]],
) -> Verdict:
    """The verdict on arms with given final metrics and paces."""
    runs = []
    for arm, (finals, pace) in arms.items():
        runs += ending(arm.replace("_", "-"), finals, pace=pace, budget=budget)
    return judge(runs, target=target)
