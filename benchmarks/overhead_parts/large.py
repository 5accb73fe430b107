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


def _model(layers: int = 2) -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(num_hidden_layers=layers, max_position_embeddings=LENGTH, **WIDTHS)
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
    return {
        "as it is": Sifter(model, **common),
        "rows=128": Sifter(model, **common, rows=128),
        "bf16": Sifter(model, **common, precision="bf16"),
        "rows=128, bf16": Sifter(model, **common, rows=128, precision="bf16"),
    }


def memory_case(name: str) -> int:
    """In a process of its own: peak growth of one case, printed."""
    model = _model()
    work: Callable[[], object]
    if name == "update":
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        _update(model, optimizer, _batch(1, 8))  # the optimizer's state is there
        work = lambda: _update(model, optimizer, _batch(BATCH))  # noqa: E731
    else:
        sifter = _sifters(model)["as it is" if name == "sifter" else "rows=128"]
        sifter.score(_batch(2, 8))
        work = lambda: sifter.select(_batch(2 * BATCH))  # noqa: E731
    print(json.dumps(peak_growth(work)))
    return 0


def llama(args: argparse.Namespace) -> dict[str, Any]:
    """Cost beside its ratio of FLOPs, and peak memory beside the update's."""
    grown = {
        case: json.loads(in_fresh_process([sys.argv[0], "limits", "--memory-case", case]))
        for case in CASES
    }
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    candidates, kept = _batch(2 * BATCH), _batch(BATCH)
    cases: dict[str, Any] = {"update": lambda: _update(model, optimizer, kept)}
    for name, sifter in _sifters(model).items():
        cases[name] = lambda sifter=sifter: sifter.select(candidates)
    for run in cases.values():
        run()
    rounds = timed_in_turns(cases, min(args.rounds, 3))
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
    costs = {name: statistics.median(ratios(rounds, name, 1)) for name in cases if name != "update"}
    return {
        "model": "two blocks of a Llama of 1 B, real widths, fresh weights",
        "length": LENGTH,
        "batch": BATCH,
        "score": "loss",
        "update_seconds": statistics.median(s for found in rounds for _, s in found["update"]),
        "flops": flops,
        "cost": costs,
        "peak_growth_bytes": grown,
        "rounds": len(rounds),
    }
