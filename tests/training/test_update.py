"""One update: forward and backward on each of its batches, then the optimizer's step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.training.problem import Pace, Task
from sifting.training.update import make_update

CPU = torch.device("cpu")


def loss(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def made(pace: Pace, batches: list[Any]) -> tuple[nn.Module, Tensor, list[str]]:
    """The model after an update, its loss, and the clocks that ran."""
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    task = Task(model, optimizer, [], loss, lambda model: {}, schedule)
    ran: list[str] = []

    @contextmanager
    def timer(name: str) -> Iterator[None]:
        ran.append(name)
        yield

    drawn = iter(batches)
    scaler = torch.amp.GradScaler("cpu", enabled=pace.autocast == "fp16")
    found = make_update(
        task, pace, scaler=scaler, device=CPU, next_batch=lambda: next(drawn), timer=timer
    )
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05)
    assert all(p.grad is None for p in model.parameters())
    return model, found, ran


def batch(size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(size, 4), torch.randint(0, 3, (size,))


def test_batches_that_make_one_update_are_one_batch() -> None:
    one, two = batch(6), batch(6)
    joined = tuple(torch.cat(pair) for pair in zip(one, two, strict=True))
    whole, loss_whole, ran = made(Pace(updates=1), [joined])
    halves, loss_halves, twice = made(Pace(updates=1, accumulate=2), [one, two])
    torch.testing.assert_close(halves.weight, whole.weight)
    torch.testing.assert_close(loss_halves, loss_whole)
    assert not loss_halves.requires_grad
    assert ran == ["forward", "backward", "optimizer"]
    assert twice == ["forward", "backward"] * 2 + ["optimizer"]


def test_gradients_are_clipped_to_their_norm() -> None:
    torch.manual_seed(0)
    before = nn.Linear(4, 3)
    clipped, _, _ = made(Pace(updates=1, clip=0.01), [batch(6)])
    moved = [a - b for a, b in zip(clipped.parameters(), before.parameters(), strict=True)]
    norm = torch.cat([m.detach().flatten() for m in moved]).norm().item()
    assert norm == pytest.approx(0.5 * 0.01, rel=1e-3)


def test_the_forward_alone_runs_in_lower_precision() -> None:
    data = batch(6)
    low, loss_low, _ = made(Pace(updates=1, autocast="bf16"), [data])
    exact, loss_exact, _ = made(Pace(updates=1), [data])
    assert low.weight.dtype == torch.float32
    assert not torch.equal(low.weight, exact.weight)
    torch.testing.assert_close(low.weight, exact.weight, atol=0.02, rtol=0.02)
    torch.testing.assert_close(loss_low.float(), loss_exact, atol=0.02, rtol=0.02)
