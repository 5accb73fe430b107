"""Scoring text: what it costs on BERT-base, by what is left out."""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace
from typing import Any

from overhead_parts.bert import make_batch, make_model, make_optimizer, update
from overhead_parts.timing import ratios, timed_in_turns
from sifting import Sifter, cost
from sifting.measure.quality import rank_correlation

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
LABELLED = 0.15
COMMON: dict[str, Any] = {"exit": 1, "score": "loss", "keep": 0.5, "audit_every": 0}


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
    model = make_model(argparse.Namespace(length=length, dropout=0.1, layers=args.layers))
    optimizer = make_optimizer(model)
    candidates = make_batch(model.config, 2 * batch, length, labelled)
    kept = {key: value[:batch] for key, value in candidates.items()}
    cases: dict[str, Any] = {"update": lambda: update(model, optimizer, kept)}
    short = make_batch(model.config, 4, 32, labelled)
    given = {}
    for name, economy in ECONOMIES.items():
        given[name] = in_numbers(economy, length=length, labelled=labelled)
        sifter = Sifter(model, **COMMON, **given[name])
        sifter.select(short)  # how it is scored is found on short ones in less time
        cases[name] = lambda sifter=sifter: sifter.select(candidates)
    scores = {name: cases[name]().scores for name in given}
    cases["update"]()
    rounds = timed_in_turns(cases, args.rounds)
    shape = replace(cost.BERT_BASE, length=length, layers=args.layers)
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
        "as_before": {name: rank_correlation(scores[name], scores["as it is"]) for name in given},
        "arguments": given,
        "rounds": args.rounds,
    }


def _spread(values: list[float]) -> list[float]:
    return [min(values), max(values)]
