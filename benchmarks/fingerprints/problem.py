"""A user's own problem and selectors, as `sift compare fingerprints.problem:build` imports them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fingerprints.models import Net, loss_of, samples
from fingerprints.names import public
from sifting import Sifter


def build(seed: int, lr: float = 1e-2) -> Any:
    """Five classes that a small net can tell apart; it uses dropout, so global streams count."""
    model, rows = Net(), samples("net", 384)
    train = TensorDataset(*(rows[name][:256] for name in ("x", "labels", "index")))
    x, y = rows["x"][256:], rows["labels"][256:]
    order = torch.Generator().manual_seed(seed)

    def evaluate(model: nn.Module) -> dict[str, float]:
        model.eval()
        with torch.no_grad():
            return {"accuracy": float((model(x).argmax(dim=1) == y).double().mean())}

    return public("Problem")(
        model=model,
        batches=lambda size: DataLoader(train, size, shuffle=True, drop_last=True, generator=order),
        loss=lambda model, batch: loss_of("net", model, batch, None),
        evaluate=evaluate,
        optimizer=torch.optim.AdamW(model.parameters(), lr=lr),
        schedule=lambda optimizer, updates: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, lr, total_steps=updates
        ),
        batch=16,
        sifter={"ids": 2},
        samples=256,
    )


mapping = {"exit": 2, "score": "entropy", "keep": 0.25}


def selector(model: nn.Module, **options: Any) -> Sifter:
    return Sifter(model, **{**options, "exit": 3, "score": "margin", "every": 2})
