"""Cells of a comparison: one arm and one seed each, run in turns, each in its run folder."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sifting.compare.workload import Target, seed_all
from sifting.rng import load_random_state, save_random_state
from sifting.training.engine import Diverged, Engine
from sifting.training.recipe import Common, assemble
from sifting.training.run_folder import RunError, RunFolder, read_run, write_json
from sifting.training.signals import listening

TURN = 3.0  # seconds that an arm trains before it is another one's turn, where no block is given


@dataclass(frozen=True)
class Cell:
    """One run of a comparison.

    Attributes:
        config: its settings, arm and seed among them.
        path: its run folder.
        updates: that its budget allows, for which its learning rate is planned.
        seconds: of reference time that they take, for the time left.
        budget: kind and amount, for the record.
        table: what each operation costs; see `engine.charged`.
        label: what else tells it from other cells, for people.
    """

    config: Common
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
        return read_run(self.path).status if (self.path / "run.json").exists() else "new"

    @property
    def over(self) -> bool:
        """Whether there is nothing left to do; a run that diverged would diverge again."""
        return self.status in ("finished", "failed")


class Turn:
    """A cell under way: its engine, and the random streams that are its own."""

    def __init__(self, target: Target, cell: Cell) -> None:
        self.cell = cell
        resume = cell.status != "new"
        seed_all(cell.config.seed)
        problem = target.problem(cell.config)
        self.metric = problem.metric
        self.engine: Engine = assemble(
            target.name,
            cell.config,
            problem,
            cell.path,
            updates=cell.updates,
            resume=resume,
            extra={"batch": problem.batch, "budget": dict(cell.budget)},
            reference=cell.table,
        )
        write_json(cell.path / "reference.json", cell.table)
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
        finally:
            for warning in caught:  # say which of the runs it is about
                about = f"{self.cell.name}: {warning.message}"
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


Watch = Callable[[Cell, Mapping[str, Any]], None]


def run_cells(
    target: Target,
    groups: Sequence[Sequence[Cell]],
    *,
    block: int | None = None,
    watch: Watch | None = None,
    ended: Callable[[Cell, str], None] | None = None,
) -> str | None:
    """Run groups of cells one after the other, the cells of a group in turns.

    In each round every cell gets the same share of its updates, so that a neighbour on the
    machine disturbs all alike; the order rotates. Cells that are over are passed by.

    Args:
        target: what is trained.
        groups: cells that are in memory together.
        block: updates of a turn, of the cell that makes most; by default some seconds' worth.
        watch: called with every record that is logged.
        ended: called with every cell that ended, and how.

    Returns:
        Name of the signal that stopped it, None where all cells are over.
    """
    stop = Stop()
    with listening(stop.ask):
        for group in groups:
            turns: list[Turn] = []
            for cell in group:
                if stop.reason is None and not cell.over:
                    turns.append(_start(target, cell, watch))
            _take_turns(turns, stop, block, ended)
            if stop.reason is not None:
                for turn in turns:
                    turn.stop(stop.reason)
                return stop.reason
            stop.engine = None
    return None


def _start(target: Target, cell: Cell, watch: Watch | None) -> Turn:
    try:
        turn = Turn(target, cell)
    except RunError as error:
        raise RunError(f"{cell.name}: {error}") from error
    if watch is not None:
        metric = turn.metric
        turn.engine.watch = lambda record: watch(cell, {**record, "metric": metric})
    return turn


def _take_turns(
    turns: list[Turn], stop: Stop, block: int | None, ended: Callable[[Cell, str], None] | None
) -> None:
    if not turns:
        return
    most = max(turn.cell.updates for turn in turns)
    rounds = math.ceil(max(turn.cell.seconds for turn in turns) / TURN)
    if block is not None:
        rounds = math.ceil(most / block)
    rounds = min(max(rounds, 1), most)
    for number in range(rounds):
        first = number % len(turns)
        for turn in turns[first:] + turns[:first]:
            if stop.reason is not None:
                return
            stop.engine, before = turn.engine, turn.status
            turn.advance(math.ceil(turn.cell.updates * (number + 1) / rounds))
            if turn.status not in (None, "stopped") and before is None and ended is not None:
                ended(turn.cell, str(turn.status))


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
    """How long the rest of some cells will take, from how long the part done took.

    Args:
        cells: of which those that are not over are to come, from their last checkpoint on.
    """

    def __init__(self, cells: Sequence[Cell]) -> None:
        self.begin = time.monotonic()
        self.started = {
            cell.path: self._share(cell, RunFolder(cell.path).latest() or 0)
            for cell in cells
            if not cell.over
        }
        self.done = dict(self.started)
        whole = sum(cell.seconds for cell in cells if cell.path in self.started)
        self.rest = whole - sum(self.started.values())

    @staticmethod
    def _share(cell: Cell, step: int) -> float:
        return cell.seconds * step / cell.updates

    def note(self, cell: Cell, step: int) -> None:
        """A cell has made so many updates."""
        share = self._share(cell, step)
        self.rest -= share - self.done[cell.path]
        self.done[cell.path] = share

    def end(self, cell: Cell) -> None:
        """A cell is over; where it diverged, the rest of it is not to come."""
        self.rest -= cell.seconds - self.done[cell.path]

    @property
    def seconds(self) -> float | None:
        """None before there is anything to go by."""
        made = sum(self.done.values()) - sum(self.started.values())
        if made <= 0:
            return None
        return max(0.0, self.rest) * (time.monotonic() - self.begin) / made
