"""The training loop of the recipes: any task, any arm, one budget, and a run folder.

Every arm goes through a `Sifter`; the baseline keeps everything, which is the plain loop bit for
bit. A run that is interrupted, or killed, continues from its last checkpoint with the same batches,
the same choices and the same random numbers. Under `torchrun` rank 0 writes for all.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from sifting.chooser import NotFinite
from sifting.log import hearing
from sifting.measure.stopwatch import now
from sifting.parallel.detect import in_use, unwrap
from sifting.parallel.ranks import Ranks
from sifting.rng import load_random_state, save_random_state
from sifting.sifter import Sifter
from sifting.training.checkpointing import Parts, RunProgress, not_finite
from sifting.training.checkpoints import Found
from sifting.training.problem import Pace, Task
from sifting.training.records import QUALITY, clocks, is_new, log_record, warnings_in
from sifting.training.run_folder import RunError, read_run
from sifting.training.run_writer import RunFolder
from sifting.training.signals import listening
from sifting.training.update import make_update

AGREE_EVERY = 10  # updates between two questions to all ranks: whether to stop, whether to save


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
        reference: what each operation costs on an undisturbed machine, as `clocks.charged` takes it;
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
        self.progress = RunProgress()
        self.stopped_by: str | None = None
        self.doing = "drawing"  # or what a clock runs for: told to ranks that wait
        self._asked: str | None = None  # the signal that asked this rank to stop
        device = sifter.device
        self.ranks = Ranks(lambda: sifter.device) if in_use() else None
        self.leads = self.ranks is None or self.ranks.rank == 0
        self.scaler = torch.amp.GradScaler(device.type, enabled=pace.autocast == "fp16")
        self._parts = Parts(task, sifter, self.scaler, self.ranks)
        self._batches: Generator[Any] | None = None
        self._paused: tuple[dict[str, Any], float] | None = None  # streams, and since when
        self._saved = time.monotonic()  # or begun
        self._stood = 0.0  # plain updates that those before the last one stand for
        self._warnings: list[str] = []

    @property
    def update(self) -> int:
        """Updates made."""
        return self.progress.update

    @property
    def seconds(self) -> dict[str, float]:
        """By the loop's own clocks."""
        return self.progress.seconds

    def resume(self, found: Found) -> None:
        """Continue from a checkpoint of the folder, if one was found."""
        if found.step is not None and found.state is not None:
            where = self.folder.checkpoints.path(found.step)
            self._warnings = warnings_in(read_run(self.folder.path).metrics)
            with hearing(self._hear):
                self.progress = self._parts.load(found.state, where=where, pace=self.pace)

    def begin(self, state: Mapping[str, Any], where: Path) -> None:
        """Begin with the weights, the optimizer and the learning rate of another run's checkpoint."""
        self.progress = self._parts.begin(state, where=where, pace=self.pace)

    def save(self) -> Path:
        """Write a checkpoint of everything a resumed run needs; all ranks take part.

        Weights that are not finite are not saved: the checkpoints before them are the good ones.
        """
        broken = not_finite(self.task.model)
        if broken is not None:
            raise Diverged(
                f"after update {self.update}, {broken} is not finite; {self.folder.checkpoints.last_good()}. "
                "Lower the learning rate, or clip"
            )
        state = self._parts.state(replace(self.progress, seconds=self._clocks()))
        if self.leads:
            self.doing = "saving"
            with self._disk():
                self.folder.save(self.update, state, keep=self.pace.keep_checkpoints)
            self.doing = "drawing"
        self._saved = time.monotonic()
        return self.folder.checkpoints.path(self.update)

    @property
    def stands_for(self) -> float:
        """Plain updates that those made stand for: as many, where no autopilot lets the run end sooner."""
        pilot = self.sifter.pilot
        if pilot is None or pilot.account.trial.schedule is None:
            return self.update
        return self.update + pilot.account.gained / self.pace.accumulate

    @property
    def done(self) -> bool:
        """Whether the progress of the planned updates is made."""
        pilot = self.sifter.pilot
        return self.update >= self.pace.updates or (pilot is not None and pilot.account.over)

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
            # the sifter's clock of the user's step has been running. The one access to it here
            self.sifter.meter.seconds["between"] -= now() - since
        last = min(self.update + updates, self.pace.updates)
        with self._disk(), hearing(self._hear):  # the sifter writes its audits there
            try:
                while self.update < last and not self.done and self.stopped_by is None:
                    self._update()
                    self._after_update()
            except Diverged as error:
                self._end("failed", error=str(error))
                raise
        self._paused = save_random_state(), now()

    def ask(self, reason: str) -> None:
        """Ask the run to save and stop after the update under way; a signal's name, for the record."""
        self._asked = reason

    def cut_off(self, reason: str) -> str:
        """Close the run folder of a run that cannot continue from where it is, but from its last checkpoint."""
        if self.stopped_by is None:
            self.stopped_by = reason
            with suppress(OSError):
                self._end("stopped")
        return "stopped"

    def finish(self) -> str:
        """Close the run folder; returns the run's status."""
        status = "stopped" if self.stopped_by else "finished"
        if self._batches is not None:
            self._batches.close()
        # of all ranks, as in the log; a run that failed cannot ask them any more
        everyone = dict(self.sifter.stats(reduce=True))
        with self._disk():
            self._end(status, sifting=everyone)
        return status

    def _after_update(self) -> None:
        if self.sifter.pilot is not None:
            for record in self.sifter.pilot.take_records():
                self._record(record.pop("kind"), record)
        save = self._agree() or self._due(self.pace.checkpoint_every)
        if self._due(self.pace.log_every):
            self._log_training()
        if self._due(self.pace.evaluate_every):
            self._evaluate()
        if save or self.stopped_by:
            self.save()

    def _agree(self) -> bool:
        """Whether the time for a checkpoint has come; and whether to stop, for all ranks alike."""
        limit = self.pace.checkpoint_seconds
        late = limit is not None and time.monotonic() - self._saved >= limit
        if self.ranks is None:
            self.stopped_by = self._asked
            return late
        if not self._due(AGREE_EVERY):  # a rank that acts alone leaves the others waiting
            return False
        answers = self.ranks.gather((self._asked, late))
        self.stopped_by = next((asked for asked, _ in answers if asked), None)
        return answers[0][1]

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """A folder that cannot be written any more ends the run with a message, to be resumed."""
        try:
            yield
        except OSError as error:
            trouble = self.folder.trouble(error)
            if trouble is None:
                raise
            self.stopped_by = trouble
            with suppress(OSError):  # where there is still room for it
                self._end("stopped")
            raise RunError(f"{trouble}; {self.folder.checkpoints.last_good()}") from error

    def _next(self) -> Any:
        """The next batch to train on; scores that are not finite are a run that diverged."""
        if self._batches is None:
            self._batches = self._draw()
        try:
            return next(self._batches)
        except NotFinite as error:
            raise Diverged(
                f"before update {self.update + 1}, {error}; {self.folder.checkpoints.last_good()}"
            ) from error

    def _due(self, every: int) -> bool:
        """Whether the last update has passed a multiple, in plain updates, or was the last of all."""
        return self.stands_for // every > self._stood // every or self.done

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
        device = self.sifter.device
        self._stood = self.stands_for
        with self.sifter.observer.naming():
            loss = make_update(
                self.task,
                self.pace,
                scaler=self.scaler,
                device=device,
                next_batch=self._next,
                timer=self._time,
            )
        self.progress.update += 1
        self.progress.losses.append(loss)
        # on the CPU a look costs nothing; elsewhere it would wait for the device at every step
        if device.type == "cpu" and not math.isfinite(float(loss)):
            self._diverged(float(loss))

    def _diverged(self, loss: float) -> None:
        raise Diverged(
            f"the loss of update {self.update} is {loss}; {self.folder.checkpoints.last_good()}. "
            "Lower the learning rate, or clip"
        )

    @contextmanager
    def _time(self, clock: str) -> Iterator[None]:
        meter = self.sifter.meter
        begin, observed, self.doing = now(), meter.spent("observing"), clock
        yield
        self.doing = "drawing"
        if self.sifter.device.type == "cuda":
            torch.cuda.synchronize()  # the recipes are for comparisons: an honest split is worth it
        # what the sifter reads in a forward is no part of it
        self.seconds[clock] += now() - begin - (meter.spent("observing") - observed)

    def _clocks(self) -> dict[str, float]:
        return clocks(self.seconds, self.sifter.stats())

    def _record(self, kind: str, metrics: Mapping[str, Any]) -> None:
        everyone = self.sifter.stats(reduce=True)
        if not self.leads:
            return
        record = log_record(
            kind,
            self.update,
            everyone=everyone,
            own=self.sifter.stats(),
            seconds=self._clocks(),
            table=self.reference,
        )
        self.folder.log({**record, **metrics})
        if self.watch is not None:
            self.watch({**record, **metrics, "planned": self.pace.updates})

    def _hear(self, message: str) -> None:
        """Write a warning of the library to the log, once, whatever its numbers."""
        if self.leads and is_new(message, self._warnings):
            self._warnings.append(message)
            self.folder.log({"kind": "warning", "step": self.update, "message": message})

    def _log_training(self) -> None:
        loss = float(torch.stack(self.progress.losses).mean())
        self.progress.losses = []
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
            found = self.task.evaluate(model)
            if self.done and self.task.at_end is not None:
                found = found | self.task.at_end(model)
            self.task.model.train()
        self.progress.last = found
        self._record("eval", found)

    def _end(self, status: str, **more: Any) -> None:
        if not self.leads:
            return
        summary = {
            "updates": self.update,
            "planned": self.pace.updates,
            "stopped_by": self.stopped_by,
            "seconds": self._clocks(),
            "final": self.progress.last,
            "sifting": dict(self.sifter.stats()),
            "warnings": self._warnings,
        }
        self.folder.finish(status, {**summary, **more})
