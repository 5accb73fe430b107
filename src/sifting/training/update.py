"""One update: forward and backward on each of its batches, then the optimizer's step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sifting.parallel.detect import data_parallel
from sifting.training.problem import Pace, Task

DTYPES = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def make_update(
    task: Task,
    pace: Pace,
    *,
    scaler: torch.amp.GradScaler,
    device: torch.device,
    next_batch: Callable[[], Any],
    timer: Callable[[str], AbstractContextManager[None]],
) -> Tensor:
    """Make one update and return its loss, the mean over its batches, on the device.

    Args:
        task: what is trained.
        pace: how many batches make an update, in which precision, and how it is clipped.
        scaler: of the gradients; it does nothing unless the precision is "fp16".
        device: the model's.
        next_batch: gives the batches to train on.
        timer: charges what runs inside to a clock.
    """
    total: Tensor | None = None
    dtype = DTYPES[pace.autocast]
    for number in range(1, pace.accumulate + 1):
        batch = next_batch()  # trained before the next is drawn: the sifter reads its forward
        with _unsynchronised(task.model, number < pace.accumulate):
            cast = nullcontext() if dtype is None else torch.autocast(device.type, dtype=dtype)
            with timer("forward"), cast:
                loss = task.loss(task.model, batch) / pace.accumulate
            with timer("backward"):
                torch.autograd.backward(scaler.scale(loss))
        total = loss.detach() if total is None else total + loss.detach()
    with timer("optimizer"):
        if pace.clip is not None:
            scaler.unscale_(task.optimizer)
            nn.utils.clip_grad_norm_(task.model.parameters(), pace.clip)
        scaler.step(task.optimizer)
        scaler.update()
        if task.schedule is not None:
            task.schedule.step()
        task.optimizer.zero_grad()
    assert total is not None
    return total


def _unsynchronised(model: nn.Module, accumulating: bool) -> Any:
    """Gradients that are only added up need not travel between ranks yet."""
    wrapper = data_parallel(model) if accumulating else None
    return nullcontext() if wrapper is None else wrapper.no_sync()
