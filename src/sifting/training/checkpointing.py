"""What a checkpoint of a run holds, and putting it back. All ranks take part in both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sifting.checkpoint import load_rank_states, rank_states
from sifting.measure.clocks import CLOCKS
from sifting.parallel.detect import unwrap
from sifting.parallel.ranks import Ranks
from sifting.plain import Plain
from sifting.sifter import Sifter
from sifting.training.problem import Pace, Task
from sifting.training.run_folder import RunError

POSITION = ("last_epoch", "_step_count")  # of a schedule: how often it was stepped
LONGEST = 300  # characters of another's error that are told


@dataclass
class RunProgress:
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

    def state(self, progress: RunProgress) -> dict[str, Any]:
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
            "losses": self._every_loss(progress.losses),
        }

    def _every_loss(self, losses: list[Tensor]) -> Tensor | None:
        """Losses since the last record: of this process, or a row for each rank, all of which have as many."""
        if not losses:
            return None
        own_N = torch.stack(losses)
        return own_N if self.ranks is None else torch.stack(self.ranks.gather(own_N.cpu()))

    def load(self, state: Mapping[str, Any], *, where: Path, pace: Pace) -> RunProgress:
        """Put a state back; returns how far the run was.

        Args:
            state: as `state` gave it.
            where: it was read from, for messages.
            pace: of the run, which bounds its counts.

        Raises:
            RunError: where it is not a state of this run.
        """
        try:
            progress = self._progress(Plain(state, "the run"), pace)
            unwrap(self.task.model).load_state_dict(state["model"])
            self.task.optimizer.load_state_dict(state["optimizer"])
            self._load_schedule(state["schedule"], pace.updates)
            self.scaler.load_state_dict(state["scaler"])
            load_rank_states(self.sifter, state["ranks"], self.ranks)
        except Exception as error:  # whatever an optimizer of the user's says of it
            told = _first_words(error)
            raise RunError(f"the checkpoint {where} cannot be resumed: {told}") from error
        steps = progress.update * pace.accumulate
        if self.sifter.step != steps:
            raise RunError(
                f"the checkpoint {where} cannot be resumed: its sifter has made {self.sifter.step} steps, "
                f"and {progress.update} updates are {steps}"
            )
        return progress

    def begin(self, state: Mapping[str, Any], *, where: Path, pace: Pace) -> RunProgress:
        """Begin where another run was: with its weights, optimizer and learning rate, and no more.

        Args:
            state, where, pace: as for `load`.
        """
        try:
            update = Plain(state, "the run").whole("update", most=pace.updates)
            self._check_plan(state["schedule"])
            unwrap(self.task.model).load_state_dict(state["model"])
            self.task.optimizer.load_state_dict(state["optimizer"])
            self._load_schedule(state["schedule"], update)
            self.scaler.load_state_dict(state["scaler"])
        except Exception as error:  # as in `load`
            told = _first_words(error)
            raise RunError(f"no run can start from the checkpoint {where}: {told}") from error
        return RunProgress(update=update)

    def _progress(self, found: Plain, pace: Pace) -> RunProgress:
        seconds, losses = found.inside("seconds"), found.get("losses")
        return RunProgress(
            update=found.whole("update", most=pace.updates),
            seconds={name: seconds.number(name) if name in seconds else 0.0 for name in CLOCKS},
            last=dict(found.inside("last").content),
            losses=[] if losses is None else self._own_losses(found),
        )

    def _own_losses(self, found: Plain) -> list[Tensor]:
        """This rank's losses, to be averaged with those to come; on another number of ranks, their mean."""
        losses = found.tensor("losses")
        if losses.dim() != 2:
            own_N = found.tensor("losses", dims=1)
        elif self.ranks is not None and len(losses) == self.ranks.world:
            own_N = losses[self.ranks.rank]
        else:
            own_N = losses.mean(0)
        return list(own_N.to(self.sifter.device))

    def _check_plan(self, saved: Any) -> None:
        """Raise where a schedule was planned otherwise: it brings its length along, and ends or turns there."""
        schedule = self.task.schedule
        if schedule is None:
            return
        for name, own in schedule.state_dict().items():
            if name in POSITION or isinstance(own, bool) or not isinstance(own, int):
                continue
            if saved.get(name, own) != own:
                raise ValueError(
                    f"its schedule of the learning rate has {name}={saved[name]!r}, and this run's has {own}: "
                    "plan as many updates as it did"
                )

    def _load_schedule(self, saved: Any, updates: int) -> None:
        """A schedule takes whatever it is given: so its counts are looked at first."""
        schedule = self.task.schedule
        if schedule is None:
            return
        found, own = Plain(saved, "the schedule"), schedule.state_dict()
        for name in own:
            found.get(name)
        for name in POSITION:
            if isinstance(own.get(name), int):
                found.whole(name, most=updates + 1)
        schedule.load_state_dict(dict(found.content))


def not_finite(model: nn.Module) -> str | None:
    """Name of the first parameter with a value that is not finite.

    >>> model = nn.Linear(2, 1)
    >>> _ = model.bias.data.fill_(float("nan"))
    >>> not_finite(model)
    'bias'
    """
    return next((name for name, p in model.named_parameters() if not p.isfinite().all()), None)


def _first_words(error: Exception) -> str:
    """The first line of an error, and the next one where the first only announces it.

    >>> _first_words(ValueError("Errors in loading:\\n\\tMissing key(s): \\"head\\"\\n\\tmore"))
    'Errors in loading: Missing key(s): "head"'
    """
    lines = str(error).splitlines() or [type(error).__name__]
    return " ".join(" ".join(lines[: 1 + lines[0].endswith(":")]).split())[:LONGEST]
