"""Runs of an autopilot on points of which half are easy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import Dataset

from sifting import Sifter
from sifting.autopilot.looks import LookPlan

BATCH, STEPS = 16, 240


def draw(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Samples of which half are told apart by one feature, and half only by a product of two."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(size, 8, generator=stream)
    easy = torch.arange(size) % 2 == 0
    x[:, 0] = torch.where(easy, 3 * x[:, 0].sign(), 0.0)
    return x, torch.where(easy, x[:, 0] > 0, x[:, 1] * x[:, 2] > 0).long()


class Points(Dataset[Any]):
    """Half of them easy; jittered when they are read."""

    def __init__(self, size: int = 960, *, noisy: bool = False, jitter: float = 0.0) -> None:
        self.x, self.y = draw(size, seed=3)
        if noisy:
            self.y = torch.randint(0, 3, (size,), generator=torch.Generator().manual_seed(5))
        self.jitter = jitter

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.x[index] + self.jitter * torch.randn(8), self.y[index]


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(8, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Dropout(0.1), nn.Linear(24, 3)
    )


def held_out(size: int = 300) -> list[tuple[Tensor, Tensor]]:
    x, y = draw(size, seed=4)
    return list(zip(x.split(50), y.split(50), strict=True))


def train(
    model: nn.Module,
    batches: Any,
    *,
    steps: int = STEPS,
    optimizer: torch.optim.Optimizer | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Train some steps, epoch after epoch, giving each batch after its step."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-2)
    done = 0
    while True:
        for x, y in batches:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            yield x, y
            if done == steps:
                return


def fingerprint(model: nn.Module) -> list[Tensor]:
    return [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]


def looking(sifter: Sifter, *steps: int) -> Sifter:
    """The sifter with looks at given steps, however few samples there are."""
    assert sifter.pilot is not None
    sifter.pilot.held_out.plan_with = lambda size, there: LookPlan(steps, there)
    sifter.pilot.pacing.cost = 0.01  # as of a model that is worth choosing for
    return sifter
