"""Scoring a large decoder: two blocks of a Llama of 1 B at its real widths."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from overhead_parts.memory import in_fresh_process, peak_growth
from overhead_parts.timing import ratios, timed_in_turns
from sifting import Sifter, cost

LENGTH, BATCH = 1024, 1
SAMPLED = 8  # one in so many of the positions
CASES = ("update", "sifter", "rows")
WIDTHS: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "vocab_size": 128_256,
    "tie_word_embeddings": True,
}


def _model(*, quick: bool) -> nn.Module:
    torch.manual_seed(0)
    narrower = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "head_dim": 16,
    }
    widths = {**WIDTHS, **narrower, "num_key_value_heads": 2} if quick else WIDTHS
    config = LlamaConfig(num_hidden_layers=2, max_position_embeddings=LENGTH, **widths)
    made: nn.Module = LlamaForCausalLM(config)
    return made.train()


def _batch(count: int, length: int = LENGTH) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, WIDTHS["vocab_size"], (count, length), generator=generator)
    return {"input_ids": ids, "labels": ids}


def _update(model: nn.Module, optimizer: torch.optim.Optimizer, batch: dict[str, Tensor]) -> None:
    model(**batch).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def _sifters(model: nn.Module) -> dict[str, Sifter]:
    common: dict[str, Any] = {"exit": 1, "score": "loss", "keep": 0.5, "audit_every": 0}
    rows = LENGTH // SAMPLED
    return {
        "as it is": Sifter(model, **common),
        "rows: 1 in 8": Sifter(model, **common, rows=rows),
        "bf16": Sifter(model, **common, precision="bf16"),
        "rows: 1 in 8, bf16": Sifter(model, **common, rows=rows, precision="bf16"),
    }


def memory_case(name: str, *, quick: bool) -> int:
    """In a process of its own: peak growth of one case, printed."""
    model = _model(quick=quick)
    work: Callable[[], object]
    if name == "update":
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        _update(model, optimizer, _batch(1, 8))  # the optimizer's state is there
        work = lambda: _update(model, optimizer, _batch(BATCH))  # noqa: E731
    else:
        sifter = _sifters(model)["as it is" if name == "sifter" else "rows: 1 in 8"]
        sifter.select(_batch(2, 16))
        work = lambda: sifter.select(_batch(2 * BATCH))  # noqa: E731
    print(json.dumps(peak_growth(work)))
    return 0


def llama(args: argparse.Namespace) -> dict[str, Any]:
    """Cost beside its ratio of FLOPs, and peak memory beside the update's."""
    quick = ["--quick"] if args.quick else []
    grown = {
        case: json.loads(in_fresh_process([sys.argv[0], "limits", "--memory-case", case, *quick]))
        for case in CASES
    }
    model = _model(quick=args.quick)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    candidates, kept = _batch(2 * BATCH), _batch(BATCH)
    cases: dict[str, Any] = {"update": lambda: _update(model, optimizer, kept)}
    for name, sifter in _sifters(model).items():
        sifter.select(_batch(2, 16))  # how it is scored is found on short ones in less time
        cases[name] = lambda sifter=sifter: sifter.select(candidates)
    for run in cases.values():
        run()
    rounds = timed_in_turns(cases, min(args.rounds, 3), updates=1)
    shape = cost.Shape(
        layers=2,
        hidden=WIDTHS["hidden_size"],
        intermediate=WIDTHS["intermediate_size"],
        vocab=WIDTHS["vocab_size"],
        heads=WIDTHS["num_attention_heads"],
        key_value_heads=WIDTHS["num_key_value_heads"],
        head_width=WIDTHS["head_dim"],
        length=LENGTH,
        head="lm",
        gated=True,
    )
    flops = cost.scoring_ratio(shape, exit=1, labelled=1.0)
    found = {name: ratios(rounds, name, 1) for name in cases if name != "update"}
    return {
        "model": "two blocks of a Llama of 1 B, real widths, fresh weights",
        "length": LENGTH,
        "batch": BATCH,
        "score": "loss",
        "update_seconds": statistics.median(s for round in rounds for _, s in round["update"]),
        "flops": flops,
        "cost": {name: statistics.median(values) for name, values in found.items()},
        "spread": {name: [min(values), max(values)] for name, values in found.items()},
        "peak_growth_bytes": grown,
        "rounds": len(rounds),
    }
