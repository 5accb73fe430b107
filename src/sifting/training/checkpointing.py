"""What a checkpoint of a run holds, and putting it back. All ranks take part in both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sifting.checkpoint import load_rank_states, rank_states
from sifting.measure.clocks import CLOCKS
from sifting.parallel.detect import unwrap
from sifting.parallel.ranks import Ranks
from sifting.sifter import Sifter
from sifting.training.problem import Task


@dataclass
class Progress:
    """How far a run is.

    Attributes:
        update: updates made.
        seconds: by clock.
        last: the last evaluation's metrics.
        losses: since the last record, on the device; read back only for it.
    """

    update: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CLOCKS, 0.0))
    last: dict[str, float] = field(default_factory=dict)
    losses: list[Tensor] = field(default_factory=list)


@dataclass(frozen=True)
class Parts:
    """What of a run has a state of its own."""

    task: Task
    sifter: Sifter
    scaler: torch.amp.GradScaler
    ranks: Ranks | None

    def state(self, progress: Progress) -> dict[str, Any]:
        """Everything that a resumed run needs."""
        schedule = self.task.schedule
        return {
            "update": progress.update,
            "model": unwrap(self.task.model).state_dict(),
            "optimizer": self.task.optimizer.state_dict(),
            "schedule": None if schedule is None else schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "ranks": rank_states(self.sifter, self.ranks),
            "seconds": progress.seconds,
            "last": progress.last,
            "losses": torch.stack(progress.losses) if progress.losses else None,
        }

    def load(self, state: Mapping[str, Any]) -> Progress:
        """Put a state back; returns how far the run was."""
        unwrap(self.task.model).load_state_dict(state["model"])
        self.task.optimizer.load_state_dict(state["optimizer"])
        if self.task.schedule is not None:
            self.task.schedule.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
        load_rank_states(self.sifter, state["ranks"], self.ranks)
        losses = state["losses"]  # to be averaged with those to come
        return Progress(
            update=int(state["update"]),
            seconds={name: float(state["seconds"][name]) for name in CLOCKS},
            last=dict(state["last"]),
            losses=[] if losses is None else list(losses.to(self.sifter.device)),
        )


def not_finite(model: nn.Module) -> str | None:
    """Name of the first parameter with a value that is not finite.

    >>> model = nn.Linear(2, 1)
    >>> _ = model.bias.data.fill_(float("nan"))
    >>> not_finite(model)
    'bias'
    """
    return next((name for name, p in model.named_parameters() if not p.isfinite().all()), None)
