"""What is trained, and at what pace: the words that recipes, comparisons and the loop share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from sifting.exits.base import Exit
from sifting.sifter import Sifter


@dataclass(frozen=True)
class Problem:
    """A model to train, its data, its loss and how it is judged; a new one is made for every run.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))
    >>> data = [(torch.randn(8, 4), torch.zeros(8).long())]
    >>> problem = Problem(
    ...     model=model,
    ...     batches=lambda: data,
    ...     loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
    ...     evaluate=lambda model: {"accuracy": 0.0},
    ...     optimizer=torch.optim.AdamW(model.parameters()),
    ...     batch=4,
    ... )
    >>> problem.metric
    'accuracy'

    Attributes:
        model: the model, on the device it trains on.
        batches: `batches()`, a loader of shuffled batches of `batch` samples, from which arms that
            select draw more candidates. Or `batches(size)`, one of batches of `size`: an arm that
            keeps half is then given one of twice the batch, each of them the candidates of a step.
        loss: `loss(model, batch)`, a scalar to go backward from.
        evaluate: metrics on held-out data, e.g. {"accuracy": 0.9}.
        optimizer: over the model's parameters.
        batch: samples trained at once, on each device.
        schedule: `schedule(optimizer, updates)`, a learning rate that ends with the updates; None
            for a constant one.
        exit: where the arms called "sift" score, unless they say otherwise.
        metric: which metric of `evaluate` counts.
        lower_is_better: whether less of it is better.
        sifter: further arguments of every arm's `Sifter`: forward, labels, ids, loss_fn, stack.
        samples: how many training samples there are, where `sifter` has the `ids=` by which arms
            with memory know them.
        at_end: further metrics that are taken once, with the last evaluation.
        held_out: `held_out()`, batches of samples that are neither trained nor evaluated on: for what
            is decided while the run goes on.
        losses: `losses(model, batch)`, one loss per sample, for arms that weight them.
    """

    model: nn.Module
    batches: Callable[..., Iterable[Any]]
    loss: Callable[[nn.Module, Any], Tensor]
    evaluate: Callable[[nn.Module], dict[str, float]]
    optimizer: torch.optim.Optimizer
    batch: int
    schedule: Callable[[torch.optim.Optimizer, int], LRScheduler] | None = None
    exit: int | str | Exit = 1
    metric: str = "accuracy"
    lower_is_better: bool = False
    sifter: Mapping[str, Any] = field(default_factory=dict)
    samples: int | None = None
    at_end: Callable[[nn.Module], dict[str, float]] | None = None
    held_out: Callable[[], Iterable[Any]] | None = None
    losses: Callable[[nn.Module, Any], Tensor] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.model, nn.Module):
            raise TypeError(f"model must be a torch.nn.Module, got {type(self.model).__name__}")
        if not isinstance(self.batch, int) or self.batch < 1:
            raise ValueError(f"batch={self.batch!r}: give a whole number of at least 1")
        if self.held_out is not None and not callable(self.held_out):
            raise TypeError(
                f"held_out is a {type(self.held_out).__name__}: give a function that returns it, as batches= is"
            )

    @property
    def sized(self) -> bool:
        """Whether `batches` is a function of the size."""
        try:
            inspect.signature(self.batches).bind()
        except TypeError:
            return True
        except ValueError:  # no signature to look at
            return False
        return False

    def loader(self, sifter: Sifter) -> Iterable[Any]:
        """The loader that a sifter of this problem is called on."""
        if not self.sized:
            return self.batches()
        keep = sifter.schedule.keep_at(0) if sifter.draws == "batch" else 1.0
        return self.batches(round(self.batch / keep))

    def checkpoint_bytes(self) -> int:
        """About how large a checkpoint is: the model and two moments of each parameter."""
        tensors = [*self.model.parameters(), *self.model.buffers()]
        return 3 * sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@dataclass(frozen=True)
class Task:
    """One run of a problem: its loader drawn up, its learning rate planned.

    Attributes:
        model: the model, wrapped for DDP where there are several ranks.
        optimizer: over its parameters.
        loader: candidate batches of one epoch; iterated again and again.
        loss: `loss(model, batch)`, a scalar to go backward from.
        evaluate: metrics on held-out data, e.g. {"accuracy": 0.9}; given the model unwrapped.
        schedule: stepped once an update; None for a constant learning rate.
        at_end: further metrics that are taken once, with the last evaluation.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Iterable[Any]
    loss: Callable[[nn.Module, Any], Tensor]
    evaluate: Callable[[nn.Module], dict[str, float]]
    schedule: LRScheduler | None = None
    at_end: Callable[[nn.Module], dict[str, float]] | None = None


@dataclass(frozen=True)
class Pace:
    """How long to train and how often to do what.

    >>> Pace(updates=100, evaluate_every=50).checkpoint_every
    500

    Args:
        updates: optimizer steps in all.
        accumulate: batches whose gradients make one update.
        clip: largest norm of the gradient; None for any.
        autocast: "no", "bf16" or "fp16".
        log_every, evaluate_every, checkpoint_every: updates between each.
        checkpoint_seconds: time after which a checkpoint is due as well; None for no limit.
        keep_checkpoints: how many of the last to keep.
    """

    updates: int
    accumulate: int = 1
    clip: float | None = None
    autocast: str = "no"
    log_every: int = 50
    evaluate_every: int = 500
    checkpoint_every: int = 500
    checkpoint_seconds: float | None = None
    keep_checkpoints: int = 2

    def __post_init__(self) -> None:
        names = "updates accumulate log_every evaluate_every checkpoint_every keep_checkpoints"
        for name in names.split():
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(
                    f"{name}={getattr(self, name)!r}: give a whole number of at least 1"
                )
        if self.autocast not in ("no", "bf16", "fp16"):
            raise ValueError(f"autocast={self.autocast!r}: choose 'no', 'bf16' or 'fp16'")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"clip={self.clip!r} must be above 0, or None")
        if self.checkpoint_seconds is not None and not self.checkpoint_seconds > 0:
            raise ValueError(
                f"checkpoint_seconds={self.checkpoint_seconds!r} must be above 0, or None"
            )
