"""Engines that train a tiny network."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter
from sifting.training.engine import Engine
from sifting.training.problem import Pace, Task
from sifting.training.run_writer import RunFolder
from tests.helpers.models import Net


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def build(folder: RunFolder, *, pace: Pace, arm: dict[str, Any], pause: float = 0.0) -> Engine:
    torch.manual_seed(0)
    model = Net()
    data = TensorDataset(torch.randn(96, 8), torch.randint(0, 5, (96,)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=pace.updates)

    def evaluate(model: nn.Module) -> dict[str, float]:
        model.eval()
        time.sleep(pause)
        with torch.no_grad():
            x, y = data.tensors
            return {"accuracy": float((model(x).argmax(1) == y).double().mean())}

    loader = DataLoader(data, batch_size=16, shuffle=True)
    task = Task(model, optimizer, loader, loss, evaluate, schedule)
    return Engine(task, Sifter(model, **{"draws": "batch", **arm}), pace, folder)


ARMS: list[dict[str, Any]] = [
    {"keep": 1.0},
    {"exit": 1, "score": "loss", "warmup_steps": 4, "audit_every": 0},
    {"exit": "tuned", "audit_every": 5},
]
PACE = Pace(updates=40, log_every=5, evaluate_every=10, checkpoint_every=7, clip=1.0)
KILLED = Pace(updates=40, log_every=5, evaluate_every=1, checkpoint_every=3)
