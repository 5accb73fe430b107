"""What each operation costs on this machine, measured in interleaved rounds before a comparison."""

from __future__ import annotations

import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from sifting.compare.budget import ArmWork
from sifting.compare.readings import Reading, doubt_of, tables_of
from sifting.compare.workload import Workload
from sifting.measure.clocks import COUNTED, OPERATIONS
from sifting.measure.stopwatch import Clock, timed_by
from sifting.model.stack import StackError
from sifting.rng import seed_all
from sifting.selection.schedule import Schedule
from sifting.training.arms import find_arm
from sifting.training.assemble import assemble
from sifting.training.config import RunConfig
from sifting.training.engine import Diverged, Engine
from sifting.training.problem import Problem
from sifting.training.run_folder import RunError

FIRST = 3  # rounds left out, in which caches and allocators fill
FEWEST, MOST, LIMIT = 8, 60, 60.0  # rounds, and seconds after which the fewest will do
FAR = 10_000  # planned updates of a trial: its learning rate stays where the schedule starts


@dataclass(frozen=True)
class Calibration:
    """What was measured.

    Attributes:
        tables: of each arm, seconds of each operation, as `clocks.charged` takes them.
        work: of each arm, how it goes through its candidates.
        batches: of each arm, samples trained at once.
        same: of each arm, what it shares with those whose update is the same work.
        rounds: measured.
        evaluation: seconds of one evaluation.
        load: the machine's, before and after.
        doubt: of each arm, how far its time over the baseline's differs between every
            other round and the rest, as a share of it: the noise that is left in the table.
        checkpoint_bytes: of one checkpoint.
        constant_lr: whether the learning rate stays as it is over the run.
        diverged: arms whose loss stopped being finite before they were measured whole.
        clock: that it was measured by.
    """

    tables: dict[str, dict[str, float]]
    work: dict[str, ArmWork]
    batches: dict[str, int]
    same: dict[str, str]
    rounds: int
    evaluation: float
    load: tuple[float | None, float | None]
    doubt: dict[str, float]
    checkpoint_bytes: int = 0
    constant_lr: bool = False
    diverged: tuple[str, ...] = ()
    clock: Clock = "wall"


class Rehearsal:
    """Some updates of an arm on a throw-away copy, each of its operations timed."""

    def __init__(self, workload: Workload, config: RunConfig, folder: Path) -> None:
        self.config = config
        config = replace(config, evaluations=1)
        seed_all(config.seed)
        self.problem: Problem = workload.problem(config)
        self.engine: Engine = assemble(
            workload.name, config, self.problem, folder, updates=FAR, resume=False
        )
        sifter = self.engine.sifter
        # as the run will have it, before selection and audits are forced
        self.schedule, self.audit_every = sifter.schedule, sifter.auditor.every
        sifter.rehearse()
        self.readings: dict[str, list[float]] = {name: [] for name in OPERATIONS}
        self.diverged = False

    def step(self, *, keep: bool) -> None:
        """One update; its times are noted where they are to be kept.

        A trial that diverges is over: its run will diverge too, and say so.
        """
        if self.diverged:
            return
        before = self._now()
        try:
            self.engine.advance(1)
        except Diverged:
            self.diverged = True
        if self.engine.update == 1 and before["updates"] == 0:
            self._check_size()
        if not keep or self.engine.update == before["updates"]:
            return
        spent = {name: value - before[name] for name, value in self._now().items()}
        for name in OPERATIONS:
            times = spent[COUNTED[name]] if name in COUNTED else 1
            if times:
                self.readings[name].append(spent[name] / times)

    def _now(self) -> dict[str, float]:
        stats = self.engine.sifter.stats()
        return {
            **self.engine.seconds,
            "updates": self.engine.update,
            "data": stats.seconds_loading,
            "scoring": stats.seconds_scoring,
            "auditing": stats.seconds_auditing,
            "observing": stats.seconds_observing,
            "candidates_seen": stats.candidates_seen,
            "selections": stats.selections,
            "audits": stats.audits,
            "losses_read": stats.losses_read,
            **dict.fromkeys(("looking", "held_out_seen", "trials", "trial_updates"), 0),
        }

    def _check_size(self) -> None:
        """Raise where the loader did not take the size it was asked for: arms would not train alike."""
        if self.engine.sifter.draws != "batch":
            return  # any batch size is what is trained
        asked = round(self.problem.batch / self.schedule.keep_at(0))
        seen = self.engine.sifter.stats().candidates_seen
        if seen != asked * self.config.accumulate:
            raise ValueError(
                f"batches({asked}) gave {seen / self.config.accumulate:g} samples in its first batch: the "
                "Problem's batches must be of the size they are called with, since an arm that selects "
                "draws more than it trains"
            )

    def reading(self) -> Reading:
        """What was found, without the model; the trial is over."""
        if not self.diverged:
            self.engine.finish()
        config, problem = self.config, self.problem
        given = round(config.warmup * FAR) * config.accumulate
        by_share = config.warmup > 0 and self.schedule.warmup_steps == given
        by_samples = self.engine.sifter.draws == "samples"
        keep = 1.0 if by_samples else self.schedule.keep_at(0)
        # nobody knows what an autopilot will select: it makes the plain loop's updates, charged the rest
        piloted = self.engine.sifter.pilot is not None
        schedule, audits = (Schedule(1.0), 0) if piloted else (self.schedule, self.audit_every)
        work = ArmWork(
            schedule,
            round(problem.batch / keep),
            config.accumulate,
            audits,
            config.warmup if by_share else None,
            by_samples,
            find_arm(config.arm).until,
            by_samples and self.engine.sifter.exit.by_id,
            self._listens(piloted),
        )
        size = sum(p.numel() for p in problem.model.parameters())
        same = (
            f"{config.accumulate} × {problem.batch} samples, {size} parameters, "
            f"clip {config.clip}, autocast {config.autocast}"
        )
        return Reading(
            self.readings,
            work,
            problem.batch,
            same,
            problem.batch * config.accumulate,
            checkpoint_bytes=problem.checkpoint_bytes(),
            constant_lr=problem.schedule is None,
            diverged=self.diverged,
        )

    def _listens(self, piloted: bool) -> Literal["step", "selection", ""]:
        """Whose losses the run will read; what an autopilot will is charged to it, and not planned."""
        if piloted or not self.readings["observing"]:
            return ""
        return "step" if self.engine.sifter.exit.observes else "selection"


class ArmError(ValueError):
    """An arm that cannot be trained on this workload.

    Args:
        arm: its name.
        why: for people.
        instead: what else to ask for.
    """

    def __init__(self, arm: str, why: str, instead: str = "") -> None:
        super().__init__(f"arm {arm!r} cannot be trained: {why}{instead}")
        self.arm, self.why = arm, why


def calibrate(
    workload: Workload,
    configs: Mapping[str, RunConfig],
    *,
    together: bool = True,
    limit: float = LIMIT,
    clock: Clock = "wall",
) -> Calibration:
    """Time every arm's operations; medians over rounds in which the arms take turns.

    An update's forward, backward and optimizer step are pooled over the arms that train equally
    many samples, and loading over those that draw equally many: it is the same work, and noise
    between arms must not enter their budgets.

    Args:
        workload: what is trained.
        configs: settings by arm, all of one seed.
        together: whether all arms are in memory at once; else one is measured after the other.
        limit: seconds after which no more rounds are made than are needed.
        clock: "cpu" for the time that this process computes, which a busy machine does not lengthen.

    Raises:
        ArmError: where an arm cannot be trained at all.
    """
    if clock == "cpu":
        _check_one_thread(workload)
    before = _load()
    groups = [list(configs)] if together else [[name] for name in configs]
    readings: dict[str, Reading] = {}
    evaluation = 0.0
    with tempfile.TemporaryDirectory(prefix="sifting-") as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is found here is not about a run
        for group in groups:
            trials: dict[str, Rehearsal] = {}
            for name in group:
                with _naming(name):
                    folder = Path(place) / str(len(readings) + len(trials))
                    trials[name] = Rehearsal(workload, configs[name], folder)
            with timed_by(clock):
                _measure(trials, limit / len(groups))
            if not readings:
                evaluation = _evaluated(workload, trials[group[0]].problem)
            readings.update({name: trial.reading() for name, trial in trials.items()})
    first = next(iter(readings))
    if readings[first].diverged:
        raise ValueError(
            f"arm {first!r} cannot be trained: its loss is not finite within {FIRST + MOST} updates. Lower "
            "the learning rate, or clip"
        )
    return Calibration(
        tables=tables_of(readings),
        work={name: reading.work for name, reading in readings.items()},
        batches={name: reading.batch for name, reading in readings.items()},
        same={name: reading.same for name, reading in readings.items()},
        rounds=min(len(r.times["forward"]) for r in readings.values() if not r.diverged),
        evaluation=evaluation,
        load=(before, _load()),
        doubt=doubt_of(readings),
        checkpoint_bytes=max(reading.checkpoint_bytes for reading in readings.values()),
        constant_lr=any(reading.constant_lr for reading in readings.values()),
        diverged=tuple(name for name, reading in readings.items() if reading.diverged),
        clock=clock,
    )


def _check_one_thread(workload: Workload) -> None:
    """Raise where the time that is computed says little about the time that passes."""
    threads = torch.get_num_threads()
    if threads > 1 or torch.cuda.is_available():
        raise ValueError(
            f"clock='cpu' on {threads} threads: a process computes on all its threads at once, and none of it "
            f"on a GPU. Set OMP_NUM_THREADS=1 where the CPU does all, or leave clock='wall' for {workload.name}"
        )


def _measure(trials: Mapping[str, Rehearsal], limit: float) -> None:
    """Rounds in which every trial makes an update; whose turn is first rotates."""
    begin, names = time.monotonic(), list(trials)
    for number in range(FIRST + MOST):
        if number >= FIRST + FEWEST and time.monotonic() - begin > limit:
            break
        first = number % len(names)
        for name in names[first:] + names[:first]:
            with _naming(name):
                trials[name].step(keep=number >= FIRST)


@contextmanager
def _naming(arm: str) -> Iterator[None]:
    """Say which arm it was that failed."""
    try:
        yield
    except StackError as error:
        raise ArmError(
            arm,
            f"{error}. In a comparison, the Problem's exit= and sifter={{'stack': …}} say so",
            "; or leave it out: --arms default finds a place on any network",
        ) from error
    except (Diverged, RunError, TypeError, ValueError) as error:
        raise ArmError(arm, str(error)) from error


def _evaluated(workload: Workload, problem: Problem) -> float:
    """Seconds of an evaluation, whose metrics must hold the one that counts."""
    begin = time.monotonic()
    metrics = problem.evaluate(problem.model)
    if not isinstance(metrics, dict) or not isinstance(metrics.get(problem.metric), int | float):
        raise ValueError(
            f"{workload.name}: evaluate gave {metrics!r}, which must be a dict with a number under "
            f"{problem.metric!r}, the problem's metric"
        )
    spent = time.monotonic() - begin
    for name, value in metrics.items():
        try:
            json.dumps({name: value})
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{workload.name}: evaluate gave {name}={value!r}, a {type(value).__name__}, which cannot be "
                "written to the log: give a plain number, e.g. by .item()"
            ) from error
    return spent


def _load() -> float | None:
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None
