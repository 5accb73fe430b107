"""What a plain loop trained, written down to be compared."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from fingerprints.digest import Result, digest, of_leaves, of_model, of_state
from sifting import Sifter


class Record:
    """What a loop trained, with which weights and losses."""

    def __init__(self) -> None:
        self.trained: list[Any] = []
        self.weights: list[Any] = []
        self.losses: list[float] = []

    def result(self, model: nn.Module, sifter: Sifter, **more: Any) -> Result:
        stats = dict(sifter.stats())
        parts = {
            "trained": digest(self.trained),
            "weights": digest(self.weights),
            "losses": digest(self.losses),
            "model": of_model(model),
            "stats": of_leaves(stats),
            "stream": digest(torch.get_rng_state()),
            **of_state(sifter.state_dict()),
        }
        parts |= {name: digest(value) for name, value in more.items()}
        numbers: dict[str, Any] = {
            "first loss": self.losses[0],
            "last loss": self.losses[-1],
            "steps": len(self.losses),
            "samples": sum(len(first_of(batch)) for batch in self.trained),
        }
        rho = stats.get("rho_approx")
        if rho is not None:
            numbers["rho_approx"] = rho
        return {"parts": parts, "numbers": numbers}


def first_of(batch: Any) -> Tensor:
    """The first member of a batch."""
    found: Tensor = next(iter(batch.values())) if isinstance(batch, dict) else batch[0]
    return found
