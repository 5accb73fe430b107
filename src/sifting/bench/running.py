"""One task from start to end: learning rates on a seed of their own, then the comparison.

    DIR/TASK/rates/0.003/     every arm at one learning rate, one seed
    DIR/TASK/compared/        every arm at its own learning rate, all seeds
    DIR/TASK/bench.json       what was asked for, what was chosen, how long it waited
    DIR/TASK/advice.json      what `sift advise` predicts, where it was asked

Both are folders of `sift compare`, which continues where it stopped.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from rich.console import Console

from sifting import checksums
from sifting.advice.observing import advise
from sifting.bench import protocol
from sifting.bench.idle import wait_until_quiet
from sifting.bench.rates import RateSearch
from sifting.bench.registry import BenchTask, workload_of
from sifting.bench.tasks.common import find_data
from sifting.compare.harness import Comparison, arm_configs, compare
from sifting.compare.live import tell
from sifting.compare.workload import FunctionWorkload, RecipeWorkload
from sifting.measure.stopwatch import Clock, timed_by
from sifting.rng import seed_all
from sifting.training.arms import ARMS
from sifting.training.config import RunConfig
from sifting.training.locks import locked
from sifting.training.recipe import DataError
from sifting.training.run_folder import RunError

FORMAT = 1
NAME, ADVICE = "bench.json", "advice.json"


@dataclass(frozen=True)
class Bench:
    """What is run, and how.

    Attributes:
        out: folder of all tasks.
        size: "full" or "smoke".
        equal: what arms have alike: "time" or "updates".
        clock: that the table of costs is measured by.
        arms: beside the baseline and random-keep; None for all of the protocol's.
        seeds: how many; None for the task's own number.
        tune: whose learning rates are chosen: every arm's; the baseline's, which serves all; or
            "none", and the preset's does.
        updates: of the baseline; None for the preset's.
        wait: whether a run that is timed waits until the machine is quiet.
    """

    out: Path
    size: str = "full"
    equal: Literal["time", "updates"] = "time"
    clock: Clock = "wall"
    arms: tuple[str, ...] | None = None
    seeds: int | None = None
    tune: protocol.Tune = "every"
    updates: int | None = None
    wait: bool = True

    def __post_init__(self) -> None:
        for name in ("seeds", "updates"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: give at least 1")


class TaskRun:
    """A task under way.

    Args:
        name: of the task, which is its folder's too.
        task: what it is.
        bench: how it is run.
        command: as a reader would type it, for the record.
    """

    def __init__(self, name: str, task: BenchTask, bench: Bench, *, command: str = "") -> None:
        self.name, self.task, self.bench = name, task, bench
        self.out = bench.out / name
        self.workload: RecipeWorkload | FunctionWorkload = workload_of(task)
        preset = task.preset(bench.size)
        if preset not in self.workload.presets:
            raise ValueError(f"task {name!r} has no size {bench.size!r}")
        self.config: RunConfig = self._with_data(self.workload.presets[preset])
        self.length = self._length()
        known = {arm: about for arm, about in ARMS.items() if arm not in task.without}
        found = protocol.arms_of(classes=task.classes, known=known)
        self.arms = found if bench.arms is None else bench.arms
        self.seeds = tuple(range(task.seeds if bench.seeds is None else bench.seeds))
        self.command = command
        self.note: dict[str, Any] = self._read_note()  # early, for what it may refuse

    def _with_data(self, config: RunConfig) -> RunConfig:
        """The settings, with the folder of the data where the recipe wants to be told."""
        folder = self.task.folder
        if not folder or self.bench.size == "smoke":
            return config
        found = find_data(folder)
        if found is None:
            raise DataError(
                f"{self.name} needs its data in $SIFT_DATA/{folder}, which is not there"
            )
        return self.workload.with_settings(config, {"data": str(found)})

    def _length(self) -> int:
        if self.bench.updates is not None:
            return self.bench.updates
        if isinstance(self.workload, RecipeWorkload):
            return self.workload.updates(self.config)
        raise ValueError(
            f"{self.name} does not say how many updates the baseline makes: give --updates"
        )

    def _read_note(self) -> dict[str, Any]:
        """What an earlier start noted, which must have been asked for the same."""
        bench = self.bench
        asked: dict[str, Any] = {
            "size": bench.size,
            "equal": bench.equal,
            "clock": bench.clock,
            "tune": bench.tune,
            "updates": self.length,
        }
        fresh = {"format": FORMAT, "task": self.name, "asked": asked, "waited": 0.0, "command": ""}
        path = self.out / NAME
        if not path.exists():
            return fresh
        try:
            found = checksums.read_json(path, required=False)  # those of before have none
            then = dict(found["asked"])
            check_task(path, found, self.name)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path} is damaged: {type(error).__name__} {error}") from error
        changed = [key for key in asked if then.get(key) != asked[key]]
        if changed:
            shown = "; ".join(f"{key} {then.get(key)!r} → {asked[key]!r}" for key in changed)
            raise RunError(
                f"{self.out} holds this task with other settings ({shown}): continue with its own, or choose "
                "another folder"
            )
        return {**fresh, **found}

    def _write_note(self, **more: Any) -> None:
        self.note = {**self.note, **more}
        try:
            self.out.mkdir(parents=True, exist_ok=True)
            checksums.write_json(self.out / NAME, self.note)
        except OSError as error:
            raise RunError(f"cannot write to {self.out}: {error}") from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other processes off the task, whose note is read once they are."""
        with locked(self.out):
            self.note = {**self._read_note(), "about": self.task.about}
            self._write_note(**({"command": self.command} if self.command else {}))
            yield

    def run(self, console: Console) -> str | None:
        """Run what is left; returns the signal that stopped it, if one did."""
        with self._alone():
            return self._run(console)

    def _run(self, console: Console) -> str | None:
        tuned = protocol.tuned_arms(self.arms, self.bench.tune)
        tunes = isinstance(self.workload, RecipeWorkload)
        if tunes and not set(tuned) <= set(self.note.get("rates", {})):
            stopped = self._choose_rates(console)
            if stopped is not None:
                return stopped
        rates = protocol.with_baseline(self.note.get("rates", {}), self._named)
        given = [f"{arm}:{self.task.rate}={rates[arm]}" for arm in self._named if arm in rates]
        for count in range(1, len(self.seeds) + 1):
            plan = self._plan("compared", self.seeds[:count], self.bench.equal, self._named, given)
            self._wait(console)
            stopped, _ = compare(plan, console)
            if stopped is not None:
                return stopped
        return None

    def advise(self, console: Console) -> str | None:
        """Have the task predicted, on a seed that is compared nowhere; as `run` otherwise."""
        with self._alone():
            return self._advise(console)

    def _advise(self, console: Console) -> str | None:
        tunes = isinstance(self.workload, RecipeWorkload) and self.bench.tune != "none"
        if tunes and protocol.BASELINE not in self.note.get("rates", {}):
            stopped = self._choose_rates(console)
            if stopped is not None:
                return stopped
        rate = self.note.get("rates", {}).get(protocol.BASELINE)
        given = {} if rate is None else {self.task.rate: rate}
        config = self.workload.with_settings(self.config, given)
        config = replace(config, seed=protocol.TUNING_SEED)
        seed_all(config.seed)
        problem = self.workload.problem(config)
        with timed_by(self.bench.clock):  # as what it is held against is
            found = advise(problem, updates=self.length, config=config, target=self.name)
        tell(console, f"{self.name}: {found.sentence}")
        try:
            said = {**found.to_dict(), "sentence": found.sentence}
            checksums.write_json(self.out / ADVICE, said)
        except OSError as error:
            raise RunError(f"cannot write to {self.out}: {error}") from error
        return None

    @property
    def _named(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((protocol.BASELINE, protocol.CONTROL, *self.arms)))

    def _plan(
        self,
        folder: str,
        seeds: tuple[int, ...],
        equal: str,
        arms: tuple[str, ...],
        given: list[str],
    ) -> Comparison:
        configs = arm_configs(self.workload, self.config, arms, given, control=False)
        budget = f"baseline:{self.length}u" if equal == "time" else f"{self.length}u"
        return self._comparison(folder, configs, seeds, budget)

    def _comparison(
        self, folder: str, configs: dict[str, RunConfig], seeds: tuple[int, ...], budget: str
    ) -> Comparison:
        out, clock = self.out / folder, self.bench.clock
        return Comparison(self.workload, out, configs, seeds, budget, clock=clock)

    def _choose_rates(self, console: Console) -> str | None:
        """Every arm's learning rate, into the note; the signal that stopped it, if one did."""
        search = RateSearch(
            protocol.rates_of(getattr(self.config, self.task.rate)),
            protocol.tuned_arms(self.arms, self.bench.tune),
        )
        updates = max(1, round(protocol.TUNING_PART * self.length))
        while todo := search.left():
            for rate, arms in todo.items():
                given = [f"{self.task.rate}={rate}", "evaluations=1"]
                configs = arm_configs(self.workload, self.config, arms, given, control=False)
                seeds, budget = (protocol.TUNING_SEED,), f"{updates}u"
                plan = self._comparison(f"rates/{rate:g}", configs, seeds, budget)
                tell(console, f"{self.name}: {', '.join(arms)} at {self.task.rate} {rate:g}")
                stopped, _ = compare(plan, console)
                if stopped is not None:
                    return stopped
                search.take(rate, arms, plan.out)
        rates = {**self.note.get("rates", {}), **search.best()}
        self._write_note(rates=rates, tried=search.tried(), tuned_at=updates)
        return None

    def _wait(self, console: Console) -> None:
        """Wait where time is measured, and note it: by CPU time a busy machine does no harm."""
        timed = self.bench.equal == "time" and self.bench.clock == "wall"
        if not self.bench.wait or not timed:
            return
        waited = wait_until_quiet(lambda text: tell(console, text))
        if waited:
            self._write_note(waited=self.note["waited"] + waited)


def check_task(path: Path, content: Mapping[str, Any], name: str, *, key: str = "task") -> None:
    """Raise unless a file is of the task in whose folder, or under whose name, it is.

    >>> check_task(Path("digits/bench.json"), {"task": "fashion"}, "digits")
    Traceback (most recent call last):
    sifting.training.run_folder.RunError: digits/bench.json is of task 'fashion', not of 'digits': ...

    Args:
        path: of the file.
        content: what it holds.
        name: of the task.
        key: under which it says of which task it is.
    """
    said = content.get(key)
    if said != name:
        raise RunError(
            f"{path} is of task {str(said)[:80]!r}, not of {name!r}: put each file, or folder, back under its "
            "own name"
        )


def own_task(path: str) -> BenchTask:
    """A user's own problem as a task.

    Args:
        path: `module:function` of a function that builds a `Problem`, or `module:RECIPE`.
    """
    task = BenchTask(path, f"{path}, of your own", own=True)
    workload = workload_of(task)
    if isinstance(workload, RecipeWorkload):
        full = "full" if "full" in workload.presets else next(iter(workload.presets))
        return replace(task, own=False, full=full)
    return task


@contextmanager
def limited(hours: float | None) -> Iterator[None]:
    """Let what runs inside be asked to stop, as by Ctrl-C, when some hours are over."""
    if hours is None:
        yield
        return
    if not hours > 0:
        raise ValueError(f"hours={hours}: give a number above 0")
    timer = threading.Timer(3600 * hours, os.kill, (os.getpid(), signal.SIGINT))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
