"""What the tasks share: settings, the schedule, metrics of classifiers, missing data."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from sifting.bench.tasks.rows import TaskRows, loader
from sifting.exits.base import Exit
from sifting.terminal import say
from sifting.training.config import RunConfig
from sifting.training.problem import Problem
from sifting.training.recipe import DataError

WARM = 0.1  # share of the updates in which the learning rate rises


@dataclass(frozen=True)
class TaskConfig(RunConfig):
    """Settings of a run of a task."""

    max_lr: float = 9e-3
    """Peak of the learning rate, which rises for a tenth of the run and falls to zero."""
    weight_decay: float = 1e-2
    """Of AdamW."""
    batch: int = 64
    """Samples trained at once."""
    length: int = 1200
    """Updates of the baseline."""
    samples: int | None = None
    """Samples to train on; None for all."""
    stand_in: bool = False
    """Whether other data of the same shape may be used where the task's own is not installed."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("length", "samples"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1")
        if not self.max_lr > 0:
            raise ValueError(f"max_lr={self.max_lr}: give a number above 0")


@dataclass(frozen=True)
class Data:
    """The samples of a task.

    Attributes:
        train: to train on.
        held_out: from the same source as those, for whoever decides something during training or
            chooses a learning rate.
        test: to judge by, and for nothing else.
        classes: how many there are; 0 where samples have no class.
    """

    train: TaskRows
    held_out: TaskRows
    test: TaskRows
    classes: int = 0


def one_cycle(optimizer: torch.optim.Optimizer, updates: int) -> LRScheduler:
    """A tenth of the updates up to the optimizer's own learning rates, a cosine down to zero."""
    return LambdaLR(optimizer, lambda step: share_of_peak(step, updates))


def share_of_peak(step: int, updates: int) -> float:
    """The learning rate of an update, as a share of its peak.

    >>> [round(share_of_peak(step, 20), 2) for step in (0, 1, 2, 11, 19, 20)]
    [0.5, 1.0, 1.0, 0.5, 0.01, 0.0]
    """
    warm = max(1, round(WARM * updates))
    if step < warm:
        return (step + 1) / warm
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warm) / max(1, updates - warm))))


def classified(model: nn.Module, rows: TaskRows) -> dict[str, float]:
    """Accuracy and mean cross-entropy of a classifier."""
    model.eval()
    right, total = 0, 0.0
    with torch.no_grad():
        for *inputs, labels_B in rows.in_order():
            logits_BC = model(*inputs)
            right += int((logits_BC.argmax(dim=1) == labels_B).sum())
            total += float(F.cross_entropy(logits_BC, labels_B, reduction="sum"))
    return {"accuracy": right / len(rows), "test_loss": total / len(rows)}


def classification_losses(model: nn.Module, batch: Any) -> Tensor:
    """Cross-entropy of each sample of a batch of inputs and labels."""
    *inputs, labels_B = batch
    return F.cross_entropy(model(*inputs), labels_B, reduction="none")


def make_problem(
    config: TaskConfig,
    data: Data,
    model: nn.Module,
    *,
    exit: int | str | Exit = 1,
    parameters: Iterable[Any] | None = None,
    losses: Callable[[nn.Module, Any], Tensor] = classification_losses,
    measure: Callable[[nn.Module, TaskRows], dict[str, float]] = classified,
    **more: Any,
) -> Problem:
    """A task's problem: AdamW, one cycle, evaluated on the test set, on held-out samples at the end.

    Args:
        config: of the run.
        data: of the task.
        model: to train.
        exit: where the arms called "sift" score.
        parameters: of the optimizer, in groups where they have learning rates of their own.
        losses: of a batch, one per sample; their mean is trained.
        measure: metrics of the model on some samples.
        more: further fields of `Problem`.
    """

    def held_out(model: nn.Module) -> dict[str, float]:
        found = measure(model, data.held_out)
        return {f"held_out_{name.removeprefix('test_')}": value for name, value in found.items()}

    return Problem(
        model=model,
        batches=lambda: loader(data.train, config.batch, config.seed),
        loss=lambda model, batch: losses(model, batch).mean(),
        losses=losses,
        evaluate=lambda model: measure(model, data.test),
        optimizer=torch.optim.AdamW(
            list(model.parameters()) if parameters is None else parameters,
            lr=config.max_lr,
            weight_decay=config.weight_decay,
        ),
        schedule=one_cycle,
        batch=config.batch,
        exit=exit,
        held_out=data.held_out.in_order,
        at_end=held_out,
        **more,
    )


def find_data(name: str, *places: str) -> Path | None:
    """The first folder that is there: `$SIFT_DATA/name`, or where packages put it.

    Args:
        name: of the folder in `$SIFT_DATA`.
        places: elsewhere.
    """
    own = os.environ.get("SIFT_DATA")
    candidates = [*([Path(own) / name] if own else []), *map(Path, places)]
    return next((path for path in candidates if path.is_dir()), None)


def missing(config: TaskConfig, what: str, remedy: str, stand_in: str) -> None:
    """Raise where a task's data is not installed, or say what stands in for it.

    Args:
        config: of the run.
        what: is missing.
        remedy: what a user can do about it.
        stand_in: what is used instead, where the settings allow it.
    """
    if not config.stand_in:
        raise DataError(f"{what} is not installed: {remedy}")
    say(f"{what} is not installed, {stand_in} stands in for it: {remedy}", error=True)


def updates(config: TaskConfig, data: Any) -> int:
    """Updates of the baseline."""
    return config.length
