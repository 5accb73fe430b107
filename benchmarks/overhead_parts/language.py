"""Scoring text: costs on BERT-base, quality on a small model that has learned from real text."""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from overhead_parts.bert import make_batch, make_model, make_optimizer, update
from overhead_parts.timing import ratios, timed_in_turns
from sifting import Sifter, cost
from sifting.measure.quality import quality, rank_correlation
from sifting.recipes import bert as recipe

# What is left out, as arguments of a sifter. Of rows and views: shares of the labelled and of all positions.
Economy = dict[str, Any]
ECONOMIES: dict[str, Economy] = {
    "as it is": {},
    "rows='labelled'": {"rows": "labelled"},
    "rows: 3 in 4": {"rows": 0.75},
    "rows: 1 in 2": {"rows": 0.5},
    "rows: 1 in 4": {"rows": 0.25},
    "view: 3 in 4": {"view": 0.75},
    "view: 1 in 2": {"view": 0.5},
    "bf16": {"precision": "bf16"},
    "rows='labelled', bf16": {"rows": "labelled", "precision": "bf16"},
    "rows: 3 in 4, bf16": {"rows": 0.75, "precision": "bf16"},
    "rows: 1 in 2, bf16": {"rows": 0.5, "precision": "bf16"},
    "view: 3 in 4, rows='labelled', bf16": {"view": 0.75, "rows": "labelled", "precision": "bf16"},
    "view: 1 in 2, rows: 1 in 2, bf16": {"view": 0.5, "rows": 0.5, "precision": "bf16"},
}
QUICK = (
    "as it is",
    "rows='labelled'",
    "view: 1 in 2",
    "bf16",
    "rows='labelled', bf16",
    "rows: 1 in 2, bf16",
)
LENGTH = 128
LABELLED = 0.15
CANDIDATES = 64  # a batch, where quality is measured
BATCHES = 12  # of them


def in_numbers(economy: Economy, *, length: int, labelled: float) -> Economy:
    """The arguments for sequences of a length, of which a share is labelled."""
    found = dict(economy)
    if isinstance(found.get("view"), float):
        found["view"] = round(found["view"] * length)
    if isinstance(found.get("rows"), float):
        found["rows"] = max(1, round(found["rows"] * labelled * length))
    return found


def bert_costs(args: argparse.Namespace, *, length: int, batch: int) -> dict[str, Any]:
    """Choosing 2n at exit 1 over an update on n, by what is left out."""
    labelled = LABELLED
    settings = argparse.Namespace(length=length, dropout=0.1)
    model = make_model(settings)
    optimizer = make_optimizer(model)
    candidates = make_batch(model.config, 2 * batch, length, labelled)
    kept = {key: value[:batch] for key, value in candidates.items()}
    cases: dict[str, Any] = {"update": lambda: update(model, optimizer, kept)}
    given = {}
    for name, economy in ECONOMIES.items():
        if args.quick and name not in QUICK:
            continue
        given[name] = in_numbers(economy, length=length, labelled=labelled)
        sifter = Sifter(model, exit=1, score="loss", keep=0.5, audit_every=0, **given[name])
        cases[name] = lambda sifter=sifter: sifter.select(candidates)
    for run in cases.values():
        run()
    rounds = timed_in_turns(cases, args.rounds)
    shape = replace(cost.BERT_BASE, length=length)
    return {
        "model": "BERT-base, fresh weights",
        "length": length,
        "batch": batch,
        "score": "loss",
        "update_seconds": statistics.median(s for found in rounds for _, s in found["update"]),
        "flops": cost.scoring_ratio(shape, exit=1, labelled=labelled),
        "paper_512": cost.paper_ratio(1),
        "cost": {name: statistics.median(ratios(rounds, name, 1)) for name in given},
        "spread": {name: _spread(ratios(rounds, name, 1)) for name in given},
        "arguments": given,
        "rounds": args.rounds,
    }


def _spread(values: list[float]) -> list[float]:
    return [min(values), max(values)]


def memory_cost(args: argparse.Namespace) -> dict[str, Any]:
    """A step with a memory of ten million samples, over an update of BERT-base."""
    import loading

    batch, length = 32, 128
    settings = argparse.Namespace(length=length, dropout=0.1)
    model = make_model(settings)
    optimizer = make_optimizer(model)
    small = 8  # the update on 32 sequences takes four times as long: four of these stand for it
    kept = make_batch(model.config, small, length, LABELLED)
    update(model, optimizer, kept)
    found = loading.memory(argparse.Namespace(ids=10_000_000, steps=200))
    rounds = timed_in_turns({"update": lambda: update(model, optimizer, kept)}, args.rounds)
    seconds = [s for round in rounds for _, s in round["update"]]
    step = found["milliseconds_a_step"][str(batch)] / 1000
    return {
        "model": f"BERT-base, fresh weights, length {length}",
        "samples": found["ids"],
        "batch": batch,
        "megabytes": found["megabytes"],
        "milliseconds": 1000 * step,
        "update_seconds": statistics.median(seconds) * batch / small,
        "cost": step / (statistics.median(seconds) * batch / small),
        "rounds": args.rounds,
    }


# -- quality


def learned(args: argparse.Namespace) -> tuple[torch.nn.Module, Iterator[dict[str, Tensor]], str]:
    """A small masked language model after some updates on real text, and batches it has not seen."""
    # of its preset a third of the tokens are masked, so that it learns sooner; what is ranked has the usual share
    config = replace(
        recipe.PRESETS["learn"], data=str(args.data / "text"), length=LENGTH, updates=args.updates
    )
    data = recipe.RECIPE.read(config)
    problem = recipe.problem(config, data)
    assert problem.schedule is not None
    schedule = problem.schedule(problem.optimizer, args.updates)
    model = problem.model.train()
    source = _endless(problem, config.batch)
    for made, batch in enumerate(islice(source, args.updates)):
        problem.loss(model, batch).backward()
        problem.optimizer.step()
        problem.optimizer.zero_grad()
        schedule.step()
        if made % 100 == 0:
            print(f"update {made} of {args.updates}", flush=True)
    held = recipe.examples(replace(config, masked=LABELLED), data, data.dev)

    def unseen() -> Iterator[dict[str, Tensor]]:
        order = torch.randperm(len(held), generator=torch.Generator().manual_seed(0)).numpy()
        for start in range(0, len(order) - CANDIDATES, CANDIDATES):
            made = held.batch(order[start : start + CANDIDATES], seed=0)
            yield {k: v for k, v in made.items() if k != "index"}

    figures = recipe.evaluate(model, held, count=512, batch=64)
    about = (
        f"{config.shape} of {config.layers} blocks of {config.hidden} features, {args.updates} updates of "
        f"{config.batch} sequences with {config.masked:.0%} masked, hidden tokens right "
        f"{figures['hidden_accuracy']:.1%} (commonest {figures['hidden_commonest']:.1%})"
    )
    return model, unseen(), about


def _endless(problem: Any, size: int) -> Iterator[dict[str, Tensor]]:
    while True:
        yield from problem.batches(size)


def ranking(args: argparse.Namespace) -> dict[str, Any]:
    """How well what is left out still ranks: against exit 1 as it is, and against exact losses."""
    model, batches, about = learned(args)
    arguments = {
        name: in_numbers(economy, length=LENGTH, labelled=LABELLED)
        for name, economy in ECONOMIES.items()
    }
    common: dict[str, Any] = {"score": "loss", "keep": 0.5, "audit_every": 0}
    sifters = {name: Sifter(model, exit=1, **common, **given) for name, given in arguments.items()}
    exact = Sifter(model, exit="last", **common)
    figures: dict[str, list[list[float]]] = {name: [] for name in sifters}
    for batch in islice(batches, BATCHES):
        exact_B = exact.score(batch)
        plain_B = sifters["as it is"].score(batch)
        for name, sifter in sifters.items():
            scores_B = sifter.select(batch).scores
            top_K = scores_B.topk(len(scores_B) // 2).indices
            judged = quality(scores_B, exact_B, top_K)
            figures[name].append(
                [
                    rank_correlation(scores_B, plain_B),
                    judged.rank_correlation,
                    judged.recall,
                    float(exact_B[top_K].sum() / exact_B.sum()),
                ]
            )
    names = ("as_before", "rank_correlation", "recall", "kept_loss")
    return {
        "model": about,
        "batches": BATCHES,
        "candidates": CANDIDATES,
        "updates": args.updates,
        "arguments": arguments,
        "quality": {
            name: {
                key: {"mean": statistics.fmean(column), "error": _error(column)}
                for key, column in zip(names, zip(*rows, strict=True), strict=True)
            }
            for name, rows in figures.items()
        },
    }


def _error(values: tuple[float, ...]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values))
