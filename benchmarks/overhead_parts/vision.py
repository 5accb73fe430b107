"""Scoring images: a small ResNet that learns CIFAR-10 while every exit scores its candidates."""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from typing import Any

from sifting import InputExit, Sifter, TunedExit
from sifting.measure.quality import quality
from sifting.recipes import resnet as recipe

STAGES = "resnet.encoder.stages"
BEFORE = "second stage"  # what the others are to rank as well as
EXITS: dict[str, tuple[Any, dict[str, Any]]] = {
    "second stage": (f"{STAGES}.1", {}),
    "second stage, view 16": (f"{STAGES}.1", {"view": 16}),
    "second stage, bf16": (f"{STAGES}.1", {"precision": "bf16"}),
    "first stage": (f"{STAGES}.0", {}),
    "first stage, view 16": (f"{STAGES}.0", {"view": 16}),
    "first stage, view 16, bf16": (f"{STAGES}.0", {"view": 16, "precision": "bf16"}),
    "first stage, view 20, bf16": (f"{STAGES}.0", {"view": 20, "precision": "bf16"}),
    "first stage, view 12, bf16": (f"{STAGES}.0", {"view": 12, "precision": "bf16"}),
    "stem, view 24, bf16": ("resnet.embedder", {"view": 24, "precision": "bf16"}),
    "stem, view 16, bf16": ("resnet.embedder", {"view": 16, "precision": "bf16"}),
    "input": (None, {}),
}


def resnet(args: argparse.Namespace) -> dict[str, Any]:
    """Cost and quality of exits in one run: each learns from and scores the same candidates."""
    config = replace(recipe.PRESETS["small"], data=str(args.data / "cifar10"), images=10_000)
    problem = recipe.problem(config, recipe.read(config))
    assert problem.schedule is not None
    model, n, updates = problem.model.train(), problem.batch, args.updates
    schedule = problem.schedule(problem.optimizer, updates)
    common: dict[str, Any] = {"score": "loss", "keep": 0.5, "audit_every": 0, **problem.sifter}
    sifters = {
        name: Sifter(model, exit=InputExit() if at is None else TunedExit(at), **common, **given)
        for name, (at, given) in EXITS.items()
    }
    sifters["additive, as in the paper"] = Sifter(model, exit=problem.exit, **common)
    exact = Sifter(model, exit="last", **common)
    seconds: dict[str, list[float]] = {name: [] for name in (*sifters, "update")}
    figures: dict[str, list[list[float]]] = {name: [] for name in sifters}
    made = 0
    while made < updates:
        for candidates in problem.batches(2 * n):
            judged = made >= updates // 2 and made % 5 == 0
            exact_B = exact.score(candidates) if judged else None
            for name, sifter in sifters.items():
                begin = time.process_time()
                scores_B = sifter.select(candidates).scores
                seconds[name].append(time.process_time() - begin)
                if exact_B is not None:
                    top_K = scores_B.topk(n).indices
                    found = quality(scores_B, exact_B, top_K)
                    kept_loss = float(exact_B[top_K].sum() / exact_B.sum())
                    figures[name].append([found.rank_correlation, found.recall, kept_loss])
            batch = {key: value[:n] for key, value in candidates.items()}  # a random half
            begin = time.process_time()
            problem.loss(model, batch).backward()
            problem.optimizer.step()
            problem.optimizer.zero_grad()
            seconds["update"].append(time.process_time() - begin)
            schedule.step()
            made += 1
            if made == updates:
                break
    late = slice(len(seconds["update"]) // 2, None)
    update = statistics.median(seconds["update"][late])
    return {
        "model": f"{config.shape.depths} blocks of {config.shape.widths} channels, {updates} updates",
        "accuracy": problem.evaluate(model)["accuracy"],
        "batch": n,
        "update_seconds": update,
        "updates": updates,
        "cost": {name: statistics.median(seconds[name][late]) / update for name in sifters},
        "batches": len(figures[BEFORE]),
        "quality": {name: _quality(rows, figures[BEFORE]) for name, rows in figures.items()},
    }


def _quality(rows: list[list[float]], before: list[list[float]]) -> dict[str, dict[str, float]]:
    """Means over batches; of the recall, also its difference from that of the second stage, batch by batch."""
    names = ("rank_correlation", "recall", "kept_loss")
    found = {
        name: _mean(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    apart = tuple(one[1] - other[1] for one, other in zip(rows, before, strict=True))
    return {**found, "recall_apart": _mean(apart)}


def _mean(values: tuple[float, ...]) -> dict[str, float]:
    error = statistics.stdev(values) / len(values) ** 0.5
    return {"mean": statistics.fmean(values), "error": error}
