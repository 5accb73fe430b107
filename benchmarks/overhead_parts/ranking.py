"""How well text is still ranked: on small models that have learned from real text.

Masked tokens and next tokens; candidates that the model has not seen, at the lengths whose costs are measured.
A memory is judged on what was trained before, and scores that are one update old while the model learns.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from overhead_parts.judging import Means, judged, means
from overhead_parts.language import COMMON, ECONOMIES, LABELLED, in_numbers
from sifting import MemoryExit, Sifter
from sifting.exits.base import TrainedBatch
from sifting.recipes import bert, gpt
from sifting.training.problem import Problem

Batch = dict[str, Tensor]
LENGTH = 128  # of what is trained
LENGTHS = (128, 512)  # of what is ranked
CANDIDATES, BATCHES = 64, 12
LATE_EVERY = 40  # updates, of the later half, between two batches whose scores are one update old


def ranking(args: argparse.Namespace) -> dict[str, Any]:
    """Masked tokens: by what is left out at each length, by a memory, and by scores one update old."""
    updates = 12 if args.quick else args.updates
    config = replace(
        bert.PRESETS["learn"], data=str(args.data / "text"), length=LENGTH, updates=updates
    )
    data = bert.RECIPE.read(config)
    # a third of the tokens are masked to learn from, so that it goes faster; what is ranked has the usual share
    usual = replace(config, masked=LABELLED)
    problem, held = bert.problem(config, data), bert.examples(usual, data, data.dev)
    model = problem.model
    memory = Sifter(model, exit=MemoryExit(revisit=0), keep=0.5, audit_every=0, ids="index")
    late = Late(model, unseen(held, seed=1))
    trained = _learn(problem, config.batch, updates, memory, late)
    figures = bert.evaluate(model, held, count=512, batch=64)
    lengths = {}
    for length in LENGTHS:
        held = bert.examples(replace(usual, length=length), data, data.dev)
        arguments = {
            name: in_numbers(economy, length=length, labelled=LABELLED)
            for name, economy in ECONOMIES.items()
        }
        sifters = {name: Sifter(model, **COMMON, **given) for name, given in arguments.items()}
        lengths[str(length)] = _ranked(model, sifters, unseen(held, seed=0))
    again = bert.examples(usual, data, data.train)
    order_N = trained[torch.randperm(len(trained), generator=torch.Generator().manual_seed(0))]
    remembered = _remembered(model, memory, _cut(again, order_N, seed=1))
    return {
        "model": (
            f"{config.shape} of {config.layers} blocks of {config.hidden} features, {updates} updates of "
            f"{config.batch} sequences of {LENGTH} with {config.masked:.0%} masked, hidden tokens right "
            f"{figures['hidden_accuracy']:.1%} (commonest {figures['hidden_commonest']:.1%})"
        ),
        "batches": BATCHES,
        "candidates": CANDIDATES,
        "updates": updates,
        "lengths": lengths,
        "memory": means(remembered),
        "memory_batches": len(remembered),
        "late": means(late.rows),
        "late_batches": len(late.rows),
    }


def decoder(args: argparse.Namespace) -> dict[str, Any]:
    """Next tokens: every position has a label, and some of them are scored."""
    length, updates = 256, 12 if args.quick else args.updates // 2
    config = replace(
        gpt.PRESETS["learn"], data=str(args.data / "text"), length=length, batch=4, updates=updates
    )
    data = gpt.RECIPE.read(config)
    problem = gpt.problem(config, data)
    _learn(problem, config.batch, updates)
    held = gpt.blocks(config, data, data.dev)
    figures = gpt.evaluate(problem.model, held, data.vocabulary.bytes_V, count=128, batch=16)
    arguments: dict[str, dict[str, Any]] = {
        "as it is": {},
        "rows: 1 in 8": {"rows": length // 8},
        "bf16": {"precision": "bf16"},
        "rows: 1 in 8, bf16": {"rows": length // 8, "precision": "bf16"},
    }
    sifters = {name: Sifter(problem.model, **COMMON, **given) for name, given in arguments.items()}
    return {
        "model": (
            f"{config.shape} of {config.layers} blocks of {config.hidden} features, {updates} updates of "
            f"{config.batch} sequences of {length}, {figures['nats_per_byte']:.2f} nats a byte (by frequencies "
            f"{figures['frequency_nats_per_byte']:.2f})"
        ),
        "batches": BATCHES,
        "candidates": CANDIDATES,
        "updates": updates,
        "length": length,
        "quality": _ranked(problem.model, sifters, unseen(held, seed=0)),
    }


class Late:
    """Batches that are scored by exit 1 before an update and judged after it."""

    def __init__(self, model: nn.Module, batches: Iterator[Batch]) -> None:
        self.exit, self.exact = Sifter(model, **COMMON), Sifter(model, **{**COMMON, "exit": "last"})
        self.batches, self.rows = batches, list[list[float]]()
        self._waiting: tuple[Batch, Tensor] | None = None

    def before(self) -> None:
        batch = next(self.batches)
        self._waiting = batch, self.exit.score(batch)

    def after(self) -> None:
        if self._waiting is not None:
            batch, scores_B = self._waiting
            self.rows.append(judged(scores_B, self.exact.score(batch), self.exit.score(batch)))
        self._waiting = None


def _learn(
    problem: Problem,
    size: int,
    updates: int,
    memory: Sifter | None = None,
    late: Late | None = None,
) -> Tensor:
    """Train; gives the numbers of what was trained.

    Args:
        memory: is told the losses.
        late: scores some batches before an update.
    """
    assert problem.schedule is not None
    assert problem.losses is not None
    model, schedule = problem.model.train(), problem.schedule(problem.optimizer, updates)
    ids: list[Tensor] = []
    for made, batch in enumerate(islice(_endless(problem, size), updates)):
        if late is not None and made >= updates // 2 and made % LATE_EVERY == 0:
            late.before()
        losses_B = problem.losses(model, batch)
        losses_B.mean().backward()
        problem.optimizer.step()
        problem.optimizer.zero_grad()
        schedule.step()
        ids.append(batch["index"])
        if late is not None:
            late.after()
        if memory is not None:
            known = TrainedBatch(memory.chooser.scorer.call, None, batch["index"].tolist())
            memory.exit.observe(known, losses_B)
            memory.exit.end_step()
        if made % 100 == 0:
            print(f"update {made} of {updates}", file=sys.stderr, flush=True)
    return torch.cat(ids).unique()


def _endless(problem: Problem, size: int) -> Iterator[Batch]:
    source = problem.batches(size)
    while True:
        yield from source


def unseen(examples: Any, *, seed: int) -> Iterator[Batch]:
    """Batches of candidates in an order of their own, without their numbers."""
    order_N = torch.randperm(len(examples), generator=torch.Generator().manual_seed(seed))
    for batch in _cut(examples, order_N, seed=seed):
        yield {name: value for name, value in batch.items() if name != "index"}


def _cut(examples: Any, order_N: Tensor, *, seed: int) -> Iterator[Batch]:
    for start in range(0, len(order_N) - CANDIDATES + 1, CANDIDATES):
        yield examples.batch(order_N[start : start + CANDIDATES].numpy(), seed=seed)


def _ranked(
    model: nn.Module, sifters: Mapping[str, Sifter], batches: Iterator[Batch]
) -> dict[str, Means]:
    """Every way of scoring on the same batches."""
    exact = Sifter(model, **{**COMMON, "exit": "last"})
    rows: dict[str, list[list[float]]] = {name: [] for name in sifters}
    for batch in islice(batches, BATCHES):
        exact_B = exact.score(batch)
        scores = {name: sifter.select(batch).scores for name, sifter in sifters.items()}
        for name, scores_B in scores.items():
            rows[name].append(judged(scores_B, exact_B, scores["as it is"]))
    return {name: means(found) for name, found in rows.items()}


def _remembered(model: nn.Module, memory: Sifter, batches: Iterator[Batch]) -> list[list[float]]:
    """A memory on what it has met, masked again; the scores of before are those of exit 1."""
    exit, exact = Sifter(model, **COMMON), Sifter(model, **{**COMMON, "exit": "last"})
    rows = []
    for batch in islice(batches, BATCHES):
        scores_B = memory.exit.score_ids(batch.pop("index").tolist())
        rows.append(judged(scores_B, exact.score(batch), exit.score(batch)))
    return rows
