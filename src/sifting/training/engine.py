"""The training loop of the recipes: any task, any arm, one budget, and a run folder.

Every arm goes through a `Sifter`; the baseline keeps everything, which is the plain loop bit for
bit. A run that is interrupted, or killed, goes on from its last checkpoint with the same batches,
the same choices and the same random numbers. Under `torchrun` rank 0 writes for all.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from sifting.checkpoint import state_of
from sifting.chooser import NotFinite
from sifting.parallel.detect import data_parallel, in_use, unwrap
from sifting.parallel.ranks import Ranks
from sifting.rng import load_random_state, save_random_state
from sifting.sifter import Sifter
from sifting.training.problem import Pace, Task
from sifting.training.run_folder import RunError, RunFolder
from sifting.training.signals import listening

CLOCKS = ("data", "scoring", "auditing", "forward", "backward", "optimizer", "evaluation")
QUALITY = ("recall", "rank_correlation", "rho_approx", "rho_explored", "misclassified")
AGREE_EVERY = 10  # updates between two questions to all ranks whether one was told to stop


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
        reference: what each operation costs on an undisturbed machine, as `charged` takes it;
            records then have the time by that table beside the time that passed.
    """

    def __init__(
        self,
        task: Task,
        sifter: Sifter,
        pace: Pace,
        folder: RunFolder,
        watch: Callable[[Mapping[str, Any]], None] | None = None,
        reference: Mapping[str, float] | None = None,
    ) -> None:
        self.task, self.sifter, self.pace, self.folder = task, sifter, pace, folder
        self.watch, self.reference = watch, reference
        self.update = 0
        self.seconds = dict.fromkeys(CLOCKS, 0.0)
        self.losses: list[Tensor] = []  # since the last record; read back only for it
        self.last: dict[str, float] = {}
        self.stopped_by: str | None = None
        self._asked: str | None = None  # the signal that asked this rank to stop
        device = sifter.device
        self.ranks = Ranks(lambda: sifter.device) if in_use() else None
        self.leads = self.ranks is None or self.ranks.rank == 0
        self.dtype = {"no": None, "bf16": torch.bfloat16, "fp16": torch.float16}[pace.autocast]
        self.scaler = torch.amp.GradScaler(device.type, enabled=pace.autocast == "fp16")
        self._batches: Generator[Any] | None = None
        self._paused: tuple[dict[str, Any], float] | None = None  # streams, and since when

    def resume(self, step: int) -> None:
        """Go on from a checkpoint of the folder."""
        state = self.folder.load(step)
        unwrap(self.task.model).load_state_dict(state["model"])
        self.task.optimizer.load_state_dict(state["optimizer"])
        if self.task.schedule is not None:
            self.task.schedule.load_state_dict(state["schedule"])
        self.scaler.load_state_dict(state["scaler"])
        parts = state["ranks"]
        rank, world = (0, 1) if self.ranks is None else (self.ranks.rank, self.ranks.world)
        self.sifter.load_state_dict(state_of([part["sifter"] for part in parts], rank, world))
        self.update = int(state["update"])
        self.seconds = {name: float(state["seconds"][name]) for name in CLOCKS}
        self.last = dict(state["last"])
        losses = state["losses"]  # to be averaged with those to come
        self.losses = [] if losses is None else list(losses.to(self.sifter.device))
        if len(parts) == world:
            load_random_state(parts[rank]["streams"])
            own = parts[rank].get("buffers", {})
            for name, buffer in unwrap(self.task.model).named_buffers():
                if name in own:
                    buffer.copy_(own[name])

    def save(self) -> Path:
        """Write a checkpoint of everything a resumed run needs; all ranks take part.

        Weights that are not finite are not saved: the checkpoints before them are the good ones.
        """
        broken = [n for n, p in self.task.model.named_parameters() if not p.isfinite().all()]
        if broken:
            raise Diverged(
                f"after update {self.update}, {broken[0]} is not finite; {self._last_good()}. "
                "Lower the learning rate, or clip"
            )
        own = {"sifter": self.sifter.state_dict(), "streams": save_random_state()}
        if self.ranks is not None:  # BatchNorm's are each rank's own until DDP's next forward
            buffers = unwrap(self.task.model).named_buffers()
            own["buffers"] = {name: buffer.cpu() for name, buffer in buffers}
        parts = [own] if self.ranks is None else self.ranks.gather(own)
        path = self.folder.checkpoint_path(self.update)
        if self.leads:
            schedule = self.task.schedule
            state = {
                "update": self.update,
                "model": unwrap(self.task.model).state_dict(),
                "optimizer": self.task.optimizer.state_dict(),
                "schedule": None if schedule is None else schedule.state_dict(),
                "scaler": self.scaler.state_dict(),
                "ranks": parts,
                "seconds": self._clocks(),
                "last": self.last,
                "losses": torch.stack(self.losses) if self.losses else None,
            }
            self.folder.save(self.update, state, keep=self.pace.keep_checkpoints)
        return path

    @property
    def done(self) -> bool:
        """Whether the planned updates are made."""
        return self.update >= self.pace.updates

    def run(self) -> str:
        """Train until the budget is spent or a signal comes; returns the run's status."""
        with listening(self.ask):
            while not self.done and self.stopped_by is None:
                self.advance(self.pace.updates)
        return self.finish()

    def advance(self, updates: int) -> None:
        """Make some updates and pause, so that another run may use the machine in between.

        However it is cut up, the run stays the same: the global random streams are the run's own.
        """
        if self._paused is not None:
            streams, since = self._paused
            load_random_state(streams)
            # the sifter's clock of the user's step has been running
            self.sifter.meter.seconds["between"] -= time.perf_counter() - since
        last = min(self.update + updates, self.pace.updates)
        try:
            while self.update < last and self.stopped_by is None:
                self._update()
                self._after_update()
        except Diverged as error:
            self._end("failed", error=str(error))
            raise
        self._paused = save_random_state(), time.perf_counter()

    def ask(self, reason: str) -> None:
        """Ask the run to save and stop after the update under way.

        Args:
            reason: for the record, e.g. the name of a signal.
        """
        self._asked = reason

    def finish(self) -> str:
        """Close the run folder; returns the run's status."""
        status = "stopped" if self.stopped_by else "finished"
        if self._batches is not None:
            self._batches.close()
        # of all ranks, as in the log; a run that failed cannot ask them any more
        self._end(status, sifting=dict(self.sifter.stats(reduce=True)))
        return status

    def _after_update(self) -> None:
        if self.ranks is None:
            self.stopped_by = self._asked
        elif self._due(AGREE_EVERY):  # a rank that stops alone leaves the others waiting
            self.stopped_by = next(filter(None, self.ranks.gather(self._asked)), None)
        if self._due(self.pace.log_every):
            self._log_training()
        if self._due(self.pace.evaluate_every):
            self._evaluate()
        if self._due(self.pace.checkpoint_every) or self.stopped_by:
            self.save()

    def _next(self) -> Any:
        """The next batch to train on; scores that are not finite are a run that diverged."""
        if self._batches is None:
            self._batches = self._draw()
        try:
            return next(self._batches)
        except NotFinite as error:
            raise Diverged(
                f"before update {self.update + 1}, {error}; {self._last_good()}"
            ) from error

    def _due(self, every: int) -> bool:
        return self.update % every == 0 or self.update == self.pace.updates

    def _draw(self) -> Generator[Any]:
        """The batches to train on, epoch after epoch."""
        self.task.model.train()
        while True:
            # a run that was saved at the end of an epoch resumes with nothing left of it
            empty = not self.sifter.cursor.resuming
            for batch in self.sifter(self.task.loader):
                empty = False
                yield batch
            if empty:
                raise RunError("the loader gave no batch: the data is smaller than one batch")

    def _update(self) -> None:
        task, device, count = self.task, self.sifter.device, self.pace.accumulate
        total: Tensor | None = None
        for place in range(1, count + 1):
            batch = self._next()  # trained before the next is drawn: the sifter reads its forward
            with self._alone(place < count):
                with self._time("forward"), self._autocast():
                    loss = task.loss(task.model, batch) / count
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
        raise Diverged(
            f"the loss of update {self.update} is {loss}; {self._last_good()}. Lower the learning rate, "
            "or clip"
        )

    def _last_good(self) -> str:
        step = self.folder.latest()
        if step is None:
            return "there is no checkpoint yet"
        return f"the last good checkpoint is {self.folder.checkpoint_path(step)}"

    def _alone(self, accumulating: bool) -> Any:
        """Gradients that are only added up need not travel between ranks yet."""
        wrapper = data_parallel(self.task.model) if accumulating else None
        return nullcontext() if wrapper is None else wrapper.no_sync()

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
        stats = self.sifter.stats(reduce=True)
        record: dict[str, Any] = {
            "kind": kind,
            "step": self.update,
            "candidates_seen": stats.candidates_seen,
            "samples_trained": stats.samples_trained,
            "seconds": {name: round(value, 6) for name, value in self._clocks().items()},
        }
        if self.reference is not None:
            record["reference"] = charged(
                self.reference, self.update, dict(self.sifter.meter.counts)
            )
        if hasattr(os, "getloadavg"):
            record["load"] = round(os.getloadavg()[0], 2)
        if not self.leads:
            return
        self.folder.log({**record, **figures})
        if self.watch is not None:
            self.watch({**record, **figures, "planned": self.pace.updates})

    def _log_training(self) -> None:
        loss = float(torch.stack(self.losses).mean())
        self.losses = []
        if self.ranks is not None:
            loss = sum(self.ranks.gather(loss)) / self.ranks.world
        if not math.isfinite(loss):
            self._diverged(loss)
        stats = self.sifter.stats(reduce=True)
        lr = self.task.optimizer.param_groups[0]["lr"]
        selection = {name: stats[name] for name in QUALITY}
        self._record("train", {"loss": loss, "lr": lr, "selection": selection})

    def _evaluate(self) -> None:
        with self._time("evaluation"):
            model = unwrap(self.task.model)
            self.last = self.task.evaluate(model)
            if self.done and self.task.at_end is not None:
                self.last |= self.task.at_end(model)
            self.task.model.train()
        self._record("eval", self.last)

    def _end(self, status: str, **more: Any) -> None:
        if not self.leads:
            return
        summary = {
            "updates": self.update,
            "planned": self.pace.updates,
            "stopped_by": self.stopped_by,
            "seconds": self._clocks(),
            "final": self.last,
            "sifting": dict(self.sifter.stats()),
        }
        self.folder.finish(status, {**summary, **more})


def charged(
    table: Mapping[str, float], updates: int, counts: Mapping[str, float]
) -> dict[str, float]:
    """Seconds by a table of what each operation costs, for what was done so far.

    >>> table = {"data": 0.01, "scoring": 2.0, "forward": 1.0, "backward": 2.0, "optimizer": 0.5}
    >>> charged(table, 3, {"candidates_seen": 100, "selections": 2, "audits": 0})
    {'data': 1.0, 'scoring': 4.0, 'auditing': 0.0, 'forward': 3.0, 'backward': 6.0, 'optimizer': 1.5}

    Args:
        table: seconds of loading one candidate, of scoring a batch, of an audit, and of an
            update's forward, backward and optimizer step.
        updates: that were made.
        counts: candidates_seen, selections and audits of the sifter.
    """
    times = {
        "data": counts.get("candidates_seen", 0),
        "scoring": counts.get("selections", 0),
        "auditing": counts.get("audits", 0),
        "forward": updates,
        "backward": updates,
        "optimizer": updates,
    }
    return {name: round(table.get(name, 0.0) * times[name], 6) for name in times}
