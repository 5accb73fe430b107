"""The training loop of the recipes: any task, any arm, one budget, and a run folder.

Every arm goes through a `Sifter`; the baseline keeps everything, which is the plain loop bit for
bit. A run that is interrupted, or killed, goes on from its last checkpoint with the same batches,
the same choices and the same random numbers.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn

from sifting.runs import RunError, RunFolder
from sifting.sifter import Sifter
from sifting.streams import Streams

CLOCKS = ("data", "scoring", "auditing", "forward", "backward", "optimizer", "evaluation")


@dataclass(frozen=True)
class Task:
    """What is trained.

    Attributes:
        model: the model.
        optimizer: over its parameters.
        loader: candidate batches of one epoch; iterated again and again.
        loss: `loss(model, batch)`, a scalar to go backward from.
        evaluate: figures on held-out data, e.g. {"accuracy": 0.9}.
        schedule: stepped once an update; None for a constant learning rate.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Iterable[Any]
    loss: Callable[[nn.Module, Any], Tensor]
    evaluate: Callable[[nn.Module], dict[str, float]]
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None


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
        keep_checkpoints: how many of the last to keep.
    """

    updates: int
    accumulate: int = 1
    clip: float | None = None
    autocast: str = "no"
    log_every: int = 50
    evaluate_every: int = 500
    checkpoint_every: int = 500
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


class Diverged(RuntimeError):
    """The loss is not finite any more; the message names the last good checkpoint."""


class Engine:
    """Trains a task with a sifter and writes a run folder.

    Args:
        task: what is trained.
        sifter: which samples; `Sifter(model, keep=1.0)` for all of them.
        pace: how long, and how often to log, evaluate and save.
        folder: where to write.
        watch: called with every logged record, for a progress line or a logger.
    """

    def __init__(
        self,
        task: Task,
        sifter: Sifter,
        pace: Pace,
        folder: RunFolder,
        watch: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self.task, self.sifter, self.pace, self.folder = task, sifter, pace, folder
        self.watch = watch
        self.update = 0
        self.seconds = dict.fromkeys(CLOCKS, 0.0)
        self.losses: list[Tensor] = []  # since the last record; read back only for it
        self.last: dict[str, float] = {}
        self.stopped_by: str | None = None
        device = sifter.device
        self.dtype = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}[pace.autocast]
        self.scaler = torch.amp.GradScaler(device.type, enabled=pace.autocast == "fp16")

    def resume(self, step: int) -> None:
        """Go on from a checkpoint of the folder."""
        state = self.folder.load(step)
        self.task.model.load_state_dict(state["model"])
        self.task.optimizer.load_state_dict(state["optimizer"])
        if self.task.schedule is not None:
            self.task.schedule.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
        self.sifter.load_state_dict(state["sifter"])
        self.update = int(state["update"])
        self.seconds = {name: float(state["seconds"][name]) for name in CLOCKS}
        self.last = dict(state["last"])
        self.losses = [] if state["losses"] is None else list(state["losses"])
        Streams.from_plain(state["streams"]).restore()

    def save(self) -> Path:
        """Write a checkpoint of everything a resumed run needs."""
        schedule = self.task.schedule
        state = {
            "update": self.update,
            "model": self.task.model.state_dict(),
            "optimizer": self.task.optimizer.state_dict(),
            "schedule": None if schedule is None else schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "sifter": self.sifter.state_dict(),
            "streams": Streams.now().to_plain(),
            "seconds": self._clocks(),
            "last": self.last,
            "losses": torch.stack(self.losses) if self.losses else None,
        }
        return self.folder.save(self.update, state, keep=self.pace.keep_checkpoints)

    def run(self) -> str:
        """Train until the budget is spent or a signal comes; returns the run's status."""
        with self._signals():
            try:
                for batches in self._groups():
                    self._update(batches)
                    if self._due(self.pace.log_every):
                        self._log_training()
                    if self._due(self.pace.evaluate_every):
                        self._evaluate()
                    if self._due(self.pace.checkpoint_every) or self.stopped_by:
                        self.save()
                    if self.stopped_by:
                        break
            except Diverged as error:
                self.folder.finish("failed", {**self._summary(), "error": str(error)})
                raise
        status = "stopped" if self.stopped_by else "finished"
        self.folder.finish(status, self._summary())
        return status

    def _due(self, every: int) -> bool:
        return self.update % every == 0 or self.update == self.pace.updates

    def _groups(self) -> Iterator[list[Any]]:
        """The batches of each update, epoch after epoch."""
        group: list[Any] = []
        self.task.model.train()
        while self.update < self.pace.updates:
            # a run that was saved at the end of an epoch resumes with nothing left of it
            empty = not self.sifter.resuming
            for batch in self.sifter(self.task.loader):
                empty = False
                group.append(batch)
                if len(group) == self.pace.accumulate:
                    yield group
                    group = []
                if self.update >= self.pace.updates:
                    return
            if empty:
                raise RunError("the loader gave no batch: the data is smaller than one batch")

    def _update(self, group: list[Any]) -> None:
        task, device = self.task, self.sifter.device
        total: Tensor | None = None
        for batch in group:
            with self._time("forward"), self._autocast():
                loss = task.loss(task.model, batch) / len(group)
            with self._time("backward"):
                torch.autograd.backward(self.scaler.scale(loss))
            total = loss.detach() if total is None else total + loss.detach()
        with self._time("optimizer"):
            if self.pace.clip is not None:
                self.scaler.unscale_(task.optimizer)
                nn.utils.clip_grad_norm_(task.model.parameters(), self.pace.clip)
            self.scaler.step(task.optimizer)
            self.scaler.update()
            if task.schedule is not None:
                task.schedule.step()
            task.optimizer.zero_grad()
        self.update += 1
        assert total is not None
        self.losses.append(total)
        # on the CPU a look costs nothing; elsewhere it would wait for the device at every step
        if device.type == "cpu" and not math.isfinite(float(total)):
            self._diverged(float(total))

    def _diverged(self, loss: float) -> None:
        step = self.folder.latest()
        good = "there is no checkpoint yet"
        if step is not None:
            good = f"the last good checkpoint is {self.folder.checkpoint_path(step)}"
        raise Diverged(
            f"the loss of update {self.update} is {loss}; {good}. Lower the learning rate, or clip"
        )

    def _autocast(self) -> Any:
        if self.dtype is None:
            return nullcontext()
        return torch.autocast(self.sifter.device.type, dtype=self.dtype)

    @contextmanager
    def _time(self, clock: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        if self.sifter.device.type == "cuda":
            torch.cuda.synchronize()  # the recipes are for comparisons: an honest split is worth it
        self.seconds[clock] += time.perf_counter() - begin

    def _clocks(self) -> dict[str, float]:
        """Seconds by what they were spent on; loading and scoring are the sifter's to tell."""
        stats = self.sifter.stats()
        return {
            **self.seconds,
            "data": stats.seconds_loading,
            "scoring": stats.seconds_scoring,
            "auditing": stats.seconds_auditing,
        }

    def _record(self, kind: str, figures: Mapping[str, Any]) -> None:
        stats = self.sifter.stats()
        record = {
            "kind": kind,
            "step": self.update,
            "candidates_seen": stats.candidates_seen,
            "samples_trained": stats.samples_trained,
            "seconds": {name: round(value, 6) for name, value in self._clocks().items()},
            **figures,
        }
        self.folder.log(record)
        if self.watch is not None:
            self.watch({**record, "planned": self.pace.updates})

    def _log_training(self) -> None:
        loss = float(torch.stack(self.losses).mean())
        self.losses = []
        if not math.isfinite(loss):
            self._diverged(loss)
        stats = self.sifter.stats()
        quality = {
            name: stats[name]
            for name in (
                "recall",
                "rank_correlation",
                "rho_approx",
                "rho_explored",
                "misclassified",
            )
        }
        lr = self.task.optimizer.param_groups[0]["lr"]
        self._record("train", {"loss": loss, "lr": lr, "selection": quality})

    def _evaluate(self) -> None:
        with self._time("evaluation"):
            self.last = self.task.evaluate(self.task.model)
            self.task.model.train()
        self._record("eval", self.last)

    def _summary(self) -> dict[str, Any]:
        return {
            "updates": self.update,
            "planned": self.pace.updates,
            "stopped_by": self.stopped_by,
            "seconds": self._clocks(),
            "final": self.last,
            "sifting": dict(self.sifter.stats()),
        }

    @contextmanager
    def _signals(self) -> Iterator[None]:
        """Ctrl-C and SIGTERM end the run after the update under way; a second one at once."""

        def stop(number: int, frame: FrameType | None) -> None:
            if self.stopped_by is not None:
                raise KeyboardInterrupt
            self.stopped_by = signal.Signals(number).name

        try:
            before = {s: signal.signal(s, stop) for s in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not in the main thread, where signals do not arrive anyway
            before = {}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
