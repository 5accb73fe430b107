"""The runs of a comparison: one arm and one seed each, trained in turns, each in its run folder."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sifting.compare.workload import Workload
from sifting.rng import load_random_state, save_random_state, seed_all
from sifting.training.assemble import assemble
from sifting.training.checkpoints import Checkpoints
from sifting.training.config import RunConfig
from sifting.training.engine import Diverged, Engine
from sifting.training.locks import locked
from sifting.training.run_folder import RunError, read_status
from sifting.training.signals import listening

TURN = 3.0  # seconds that an arm trains before it is another one's turn, where no block is given


@dataclass(frozen=True)
class PlannedRun:
    """One run of a comparison.

    Attributes:
        config: its settings, arm and seed among them.
        path: its run folder.
        updates: that its budget allows, for which its learning rate is planned.
        seconds: of reference time that they take, for the time left.
        budget: kind and amount, for the record.
        table: what each operation costs; see `clocks.charged`.
        label: what else tells it from other runs, for people.
    """

    config: RunConfig
    path: Path
    updates: int
    seconds: float
    budget: Mapping[str, Any]
    table: Mapping[str, float]
    label: str = ""

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.config.arm}, seed {self.config.seed}{self.label}"

    @property
    def status(self) -> str:
        """That of its run folder; "new" where there is none."""
        return read_status(self.path) if (self.path / "run.json").exists() else "new"

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do; a run that diverged would diverge again."""
        return self.status in ("finished", "failed")


class Turn:
    """A run under way: its engine, and the random streams that are its own."""

    def __init__(self, workload: Workload, run: PlannedRun) -> None:
        self.run = run
        resume = run.status != "new"
        seed_all(run.config.seed)
        problem = workload.problem(run.config)
        self.metric = problem.metric
        self.engine: Engine = assemble(
            workload.name,
            run.config,
            problem,
            run.path,
            updates=run.updates,
            resume=resume,
            extra={"batch": problem.batch, "budget": dict(run.budget)},
            reference=run.table,
        )
        self.engine.folder.attach("reference.json", run.table)
        self.status: str | None = None
        self._streams: dict[str, Any] | None = save_random_state()  # until the engine keeps them

    def advance(self, goal: int) -> None:
        """Train until an update; a run that diverges, or is done, is over."""
        if self.status is not None:
            return
        if self._streams is not None:
            load_random_state(self._streams)
            self._streams = None
        try:
            with warnings.catch_warnings(record=True) as caught:
                self.engine.advance(max(0, goal - self.engine.update))
        except Diverged:
            self.status = "failed"
            return
        except Exception as error:
            # in the middle of an update, of which no checkpoint may be made
            self.status = self.engine.cut_off(f"{type(error).__name__}: {error}")
            raise
        finally:
            for warning in caught:  # say which of the runs it is about
                about = f"{self.run.name}: {warning.message}"
                warnings.warn_explicit(about, warning.category, warning.filename, warning.lineno)
        if self.engine.done or self.engine.stopped_by:
            self.status = self.engine.finish()

    def stop(self, name: str) -> None:
        """Save and close, to go on later."""
        if self.status is not None:
            return
        if self._streams is None:  # it has trained: its own streams go into the checkpoint
            self.engine.advance(0)
            self.engine.save()
        self.engine.stopped_by = name
        self.status = self.engine.finish()


WatchRun = Callable[[PlannedRun, Mapping[str, Any]], None]


def run_in_turns(
    workload: Workload,
    groups: Sequence[Sequence[PlannedRun]],
    *,
    block: int | None = None,
    keep_finished: bool = False,
    watch: WatchRun | None = None,
    ended: Callable[[PlannedRun, str], None] | None = None,
) -> str | None:
    """Train groups of runs one after the other, the runs of a group in turns.

    In each round every run gets the same share of its updates, so that a neighbour on the
    machine disturbs all alike; the order rotates. Runs that are over are passed by.

    Args:
        workload: what is trained.
        groups: runs that are in memory together.
        block: updates of a turn, of the run that makes most; by default some seconds' worth.
        keep_finished: whether the checkpoints of runs that have finished stay.
        watch: called with every record that is logged.
        ended: called with every run that ended, and how.

    Returns:
        Name of the signal that stopped it, None where all runs are over.
    """
    stop = Stop()
    with listening(stop.ask):
        for group in groups:
            with ExitStack() as locks:
                turns: list[Turn] = []
                try:
                    for run in group:
                        if stop.reason is None and not run.over:
                            _refuse_links(run.path)
                            locks.enter_context(locked(run.path))
                            turns.append(_start(workload, run, watch))
                    _take_turns(turns, stop, block, ended)
                except Exception as error:
                    _stop_all(turns, f"{type(error).__name__}: {error}")
                    raise
                if stop.reason is not None:
                    for turn in turns:
                        turn.stop(stop.reason)
                    return stop.reason
                if not keep_finished:
                    for turn in turns:
                        if turn.status == "finished":
                            turn.engine.folder.checkpoints.drop()
            stop.engine = None
    return None


def _refuse_links(path: Path) -> None:
    """Raise where a run's folder, or its arm's, leads out of the comparison: files in it are deleted."""
    for folder in (path.parent, path):
        if folder.is_symlink():
            raise RunError(
                f"{folder} is a link: a comparison writes and deletes nothing through one"
            )


def _stop_all(turns: Sequence[Turn], reason: str) -> None:
    """Save what can be saved where one run, or the disk, ends the whole."""
    for turn in turns:
        with suppress(Exception):
            turn.stop(reason)


def _start(workload: Workload, run: PlannedRun, watch: WatchRun | None) -> Turn:
    try:
        turn = Turn(workload, run)
    except RunError as error:
        raise RunError(f"{run.name}: {error}") from error
    if watch is not None:
        metric = turn.metric
        turn.engine.watch = lambda record: watch(run, {**record, "metric": metric})
    return turn


def _take_turns(
    turns: list[Turn],
    stop: Stop,
    block: int | None,
    ended: Callable[[PlannedRun, str], None] | None,
) -> None:
    if not turns:
        return
    most = max(turn.run.updates for turn in turns)
    rounds = math.ceil(max(turn.run.seconds for turn in turns) / TURN)
    if block is not None:
        rounds = math.ceil(most / block)
    rounds = min(max(rounds, 1), most)
    for number in range(rounds):
        first = number % len(turns)
        for turn in turns[first:] + turns[:first]:
            if stop.reason is not None:
                return
            stop.engine, before = turn.engine, turn.status
            turn.advance(math.ceil(turn.run.updates * (number + 1) / rounds))
            if turn.status not in (None, "stopped") and before is None and ended is not None:
                ended(turn.run, str(turn.status))


@dataclass
class Stop:
    """Who trains now, and the signal that asked to stop, if one did."""

    engine: Engine | None = None
    reason: str | None = None

    def ask(self, reason: str) -> None:
        """Stop after the update under way."""
        self.reason = reason
        if self.engine is not None:
            self.engine.ask(reason)


class TimeLeft:
    """How long the rest of some runs will take, from how long the part done took.

    Args:
        runs: of which those that are not over are to come, from their last checkpoint on.
    """

    def __init__(self, runs: Sequence[PlannedRun]) -> None:
        self.begin = time.monotonic()
        self.started = {
            run.path: self._share(run, Checkpoints(run.path / "checkpoints").latest() or 0)
            for run in runs
            if not run.over
        }
        self.done = dict(self.started)
        whole = sum(run.seconds for run in runs if run.path in self.started)
        self.rest = whole - sum(self.started.values())

    @staticmethod
    def _share(run: PlannedRun, step: int) -> float:
        return run.seconds * step / run.updates

    def note(self, run: PlannedRun, step: int) -> None:
        """A run has made so many updates."""
        share = self._share(run, step)
        self.rest -= share - self.done[run.path]
        self.done[run.path] = share

    def end(self, run: PlannedRun) -> None:
        """A run is over; where it diverged, the rest of it is not to come."""
        self.rest -= run.seconds - self.done[run.path]

    @property
    def seconds(self) -> float | None:
        """None before there is anything to go by."""
        made = sum(self.done.values()) - sum(self.started.values())
        if made <= 0:
            return None
        return max(0.0, self.rest) * (time.monotonic() - self.begin) / made
