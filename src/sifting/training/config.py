"""The settings of a run that are the same for all problems and recipes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sifting.training.amounts import AmountKind, parse_amount
from sifting.training.arms import find_arm

# settings that change nothing of what is trained: a run may continue with others
OPERATIONAL = ("checkpoint_every", "keep_checkpoints")


@dataclass(frozen=True)
class RunConfig:
    """Settings that every run has."""

    arm: str = "baseline"
    """Which samples are trained: an arm's name, one at another exit (sift@3), or module:attribute."""
    seed: int = 0
    """Of initialisation, order and choice."""
    updates: int | None = None
    """Optimizer steps; None for the recipe's own number."""
    batch: int = 32
    """Samples trained at once on each device; an arm that selects draws 1/keep times as many."""
    warmup: float = 0.0
    """Share of the updates before the first selection."""
    accumulate: int = 1
    """Batches whose gradients make one update."""
    clip: float | None = None
    """Largest norm of the gradient."""
    autocast: Literal["no", "bf16", "fp16"] = "no"
    """Precision of the forward pass."""
    device: str = "cpu"
    """Where to train, e.g. "cuda"; under torchrun each rank takes its own."""
    scope: Literal["rank", "global"] = "rank"
    """Among whose candidates to choose where there are several ranks."""
    audit_every: int = 50
    """Selections between audits of the choice."""
    evaluations: int = 20
    """Evaluations over the run."""
    keep_checkpoints: int = 2
    """How many of the last checkpoints to keep."""
    checkpoint_every: str | None = None
    """Updates (500u) or time (10m) between checkpoints; None for one with each evaluation."""

    def __post_init__(self) -> None:
        find_arm(self.arm)
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup={self.warmup} is not in [0, 1): it is a share of the updates")
        for name in ("batch", "evaluations", "accumulate", "keep_checkpoints", "updates"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: give at least 1")
        self.checkpoint_interval()

    def checkpoint_interval(self) -> tuple[AmountKind, float] | None:
        """What lies between two checkpoints: updates or seconds; None for an evaluation's interval.

        >>> RunConfig(checkpoint_every="10m").checkpoint_interval()
        ('seconds', 600.0)
        """
        if self.checkpoint_every is None:
            return None
        understood = "updates (500u) or time (90s, 10m, 2h)"
        found = parse_amount(self.checkpoint_every, name="checkpoint_every", understood=understood)
        if found[0] == "samples":
            raise ValueError(f"checkpoint_every={self.checkpoint_every!r}: give {understood}")
        return found


def plain_settings(config: RunConfig) -> dict[str, Any]:
    """A config as JSON has it; how often to save is recorded only where it was asked for."""
    found: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    if config.checkpoint_every is None:
        del found["checkpoint_every"]
    return found
