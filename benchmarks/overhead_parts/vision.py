"""Scoring images: a small ResNet that learns CIFAR-10 while every exit scores its candidates."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

from overhead_parts.judging import METRICS, Means, judged, means
from sifting import InputExit, MemoryExit, Sifter, TunedExit
from sifting.exits.base import TrainedBatch
from sifting.exits.predictors import WIDTH, Rate
from sifting.recipes import resnet as recipe
from sifting.training.problem import Problem

STAGES = "resnet.encoder.stages"
BEFORE = "second stage"  # what the others are to rank as well as
ADDITIVE, INPUT, MEMORY = "additive, as in the paper", "input", "memory"
SLOWER = 0.003  # a learning rate of the exit's own head: its default is 0.01
EXITS: dict[str, tuple[str, Rate, dict[str, Any]]] = {  # tuned: where, how fast, what is left out
    "second stage": (f"{STAGES}.1", 0.01, {}),
    "second stage, lr 0.003": (f"{STAGES}.1", SLOWER, {}),
    "second stage, lr by width": (f"{STAGES}.1", WIDTH, {}),
    "second stage, view 16, lr by width": (f"{STAGES}.1", WIDTH, {"view": 16}),
    "second stage, view 16, lr 0.003": (f"{STAGES}.1", SLOWER, {"view": 16}),
    "first stage": (f"{STAGES}.0", 0.01, {}),
    "first stage, lr by width": (f"{STAGES}.0", WIDTH, {}),
    "first stage, view 16, lr by width": (f"{STAGES}.0", WIDTH, {"view": 16}),
    "first stage, view 20, bf16": (f"{STAGES}.0", 0.01, {"view": 20, "precision": "bf16"}),
    "first stage, view 16": (f"{STAGES}.0", 0.01, {"view": 16}),
    "first stage, view 16, lr 0.003": (f"{STAGES}.0", SLOWER, {"view": 16}),
    "first stage, view 16, bf16, lr 0.003": (
        f"{STAGES}.0",
        SLOWER,
        {"view": 16, "precision": "bf16"},
    ),
    "first stage, view 12, lr 0.003": (f"{STAGES}.0", SLOWER, {"view": 12}),
    "first convolution, view 16, lr 0.003": (
        f"{STAGES}.0.layers.0.layer.0",
        SLOWER,
        {"view": 16},
    ),
    "stem, view 16, lr 0.003": ("resnet.embedder", SLOWER, {"view": 16}),
    "stem, view 16, lr by width": ("resnet.embedder", WIDTH, {"view": 16}),
}


def resnet(args: argparse.Namespace) -> dict[str, Any]:
    """Cost and quality of exits in one run: each learns from and scores the same candidates."""
    config = replace(recipe.PRESETS["small"], data=str(args.data / "cifar10"), images=10_000)
    problem = recipe.problem(config, recipe.read(config))
    assert problem.schedule is not None
    assert problem.losses is not None
    model, n, updates = problem.model.train(), problem.batch, 12 if args.quick else 400
    schedule = problem.schedule(problem.optimizer, updates)
    sifters = _sifters(problem)
    exact = Sifter(model, exit="last", score="loss", keep=0.5, audit_every=0, **problem.sifter)
    seconds: dict[str, list[float]] = {name: [] for name in (*sifters, "update")}
    rows: dict[str, list[list[float]]] = {name: [] for name in sifters}
    for made, candidates in enumerate(islice(_endless(problem), updates)):
        scores = {}
        for name, sifter in sifters.items():
            begin = time.process_time()
            scores[name] = sifter.select(candidates).scores
            seconds[name].append(time.process_time() - begin)
        if made >= updates // 2:
            exact_B = exact.score(candidates)
            for name, scores_B in scores.items():
                rows[name].append(judged(scores_B, exact_B, scores[BEFORE]))
        batch = {key: value[:n] for key, value in candidates.items()}  # a random half
        begin = time.process_time()
        losses_B = problem.losses(model, batch)
        losses_B.mean().backward()
        problem.optimizer.step()
        problem.optimizer.zero_grad()
        seconds["update"].append(time.process_time() - begin)
        schedule.step()
        memory = sifters[MEMORY]
        ids = batch["index"].tolist()
        memory.exit.observe(TrainedBatch(memory.chooser.scorer.call, None, ids), losses_B)
        memory.exit.end_step()
    late = slice(updates // 2, None)
    update = statistics.median(seconds["update"][late])
    return {
        "model": f"{config.shape.depths} blocks of {config.shape.widths} channels, {updates} updates",
        "accuracy": problem.evaluate(model)["accuracy"],
        "batch": n,
        "update_seconds": update,
        "updates": updates,
        "cost": {name: statistics.median(seconds[name][late]) / update for name in sifters},
        "batches": len(rows[BEFORE]),
        "quality": {name: _quality(found, rows[BEFORE]) for name, found in rows.items()},
    }


def _sifters(problem: Problem) -> dict[str, Sifter]:
    common: dict[str, Any] = {"score": "loss", "keep": 0.5, "audit_every": 0, **problem.sifter}
    made = {
        name: Sifter(problem.model, exit=TunedExit(at, lr=lr), **common, **given)
        for name, (at, lr, given) in EXITS.items()
    }
    made[ADDITIVE] = Sifter(problem.model, exit=problem.exit, **common)
    made[INPUT] = Sifter(problem.model, exit=InputExit(), **common)
    # what it would keep is not what is trained here, so that nothing is passed over
    made[MEMORY] = Sifter(problem.model, exit=MemoryExit(revisit=0), **common)
    return made


def _endless(problem: Problem) -> Iterator[dict[str, Any]]:
    source = problem.batches(2 * problem.batch)
    while True:
        yield from source


def _quality(rows: list[list[float]], before: list[list[float]]) -> Means:
    """Means over batches; of the recall, also its difference from that of the second stage, batch by batch."""
    place = METRICS.index("recall")
    apart = [[one[place] - other[place]] for one, other in zip(rows, before, strict=True)]
    return {**means(rows), **means(apart, ["recall_apart"])}
