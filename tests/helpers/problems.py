"""A user's own problem, and a user's own selectors, as `sift compare` imports them."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter
from sifting.training.problem import Problem
from tests.helpers.models import Net


def _data(count: int, seed: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 8, generator=generator)
    return TensorDataset(x, x[:, :5].argmax(dim=1))


def build(seed: int, lr: float = 1e-2, blow: int = 0) -> Problem:
    """Five classes that a small net can tell apart; it uses dropout, so streams matter."""
    model, train, test = Net(), _data(256, 1), _data(128, 2)
    order = torch.Generator().manual_seed(seed)
    calls = [0]

    def loss(model: nn.Module, batch: Any) -> Tensor:
        calls[0] += 1
        scale = float("inf") if 0 < blow < calls[0] else 1.0
        return F.cross_entropy(model(batch[0]), batch[1]) * scale

    def evaluate(model: nn.Module) -> dict[str, float]:
        model.eval()
        time.sleep(float(os.environ.get("COMPARE_PAUSE", "0")))
        x, y = test.tensors
        with torch.no_grad():
            return {"accuracy": float((model(x).argmax(1) == y).double().mean())}

    return Problem(
        model=model,
        batches=lambda size: DataLoader(
            train, batch_size=size, shuffle=True, drop_last=True, generator=order
        ),
        loss=loss,
        evaluate=evaluate,
        optimizer=torch.optim.AdamW(model.parameters(), lr=lr),
        schedule=lambda optimizer, updates: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, lr, total_steps=updates
        ),
        batch=16,
    )


def convolutional(seed: int) -> Problem:
    """A plain CNN, which has no stack of blocks."""
    model = nn.Sequential(
        *(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 4, 3), nn.BatchNorm1d(4), nn.ReLU()),
        *(nn.Conv1d(4, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 5)),
    )
    return replace(
        build(seed),
        model=model,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
    )


def regression(seed: int) -> Problem:
    """Numbers to predict, with the loss that is trained on them said as a user says it."""
    model, data = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 1)), _data(256, 1)
    order = torch.Generator().manual_seed(seed)
    x, y = data.tensors
    numbers = TensorDataset(x, y.float())

    def error(model: nn.Module, batch: Any) -> Tensor:
        return F.mse_loss(model(batch[0]).squeeze(1), batch[1])

    return Problem(
        model=model,
        batches=lambda: DataLoader(numbers, batch_size=16, shuffle=True, generator=order),
        loss=error,
        evaluate=lambda model: {"error": float(error(model, numbers.tensors))},
        metric="error",
        lower_is_better=True,
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        batch=16,
        sifter={"loss_fn": nn.MSELoss()},
    )


half = {"exit": 2, "score": "entropy", "keep": 0.25}


def selector(model: nn.Module, **options: Any) -> Sifter:
    return Sifter(model, **{**options, "exit": 3, "score": "loss", "every": 2})


def nothing(seed: int) -> str:
    return "no problem"


def broken(seed: int) -> Problem:
    raise KeyError("weights")


def misnamed(seed: int) -> Problem:
    problem = build(seed)
    object.__setattr__(problem, "metric", "f1")
    return problem


def unwritable(seed: int) -> Problem:
    problem = build(seed)
    figures = {"accuracy": 0.5, "share": torch.tensor(0.25)}
    object.__setattr__(problem, "evaluate", lambda model: figures)
    return problem


def constant(seed: int) -> Problem:
    return replace(build(seed), schedule=None)


def deaf(seed: int) -> Problem:
    """Its loader has its own idea of a batch's size."""
    problem = build(seed)
    loader = problem.batches(16)
    object.__setattr__(problem, "batches", lambda size: loader)
    return problem


def headless(model: nn.Module, **options: Any) -> Sifter:
    return Sifter(model, **{**options, "exit": 9})


number = 7
