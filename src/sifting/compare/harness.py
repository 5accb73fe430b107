"""A comparison from start to end: calibrate, plan, train the runs in turns, judge."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from sifting import files
from sifting.compare.budget import parse_budget
from sifting.compare.calibration import ArmError, Calibration, calibrate
from sifting.compare.live import Board, show_plan, span, tell
from sifting.compare.manifest import NAME, Manifest, make_manifest, read_manifest, with_evaluations
from sifting.compare.turns import PlannedRun, run_in_turns
from sifting.compare.workload import Workload, parse_settings
from sifting.log import each_line_once
from sifting.measure.stopwatch import Clock
from sifting.training.arms import find_arm
from sifting.training.config import RunConfig
from sifting.training.locks import locked
from sifting.training.run_folder import RunError, read_run
from sifting.verdict import Verdict, judge

BASELINE, CONTROL = "baseline", "random"
DOUBT = 0.02  # noise in an arm's time over the baseline's from which a user is told


@dataclass(frozen=True)
class Comparison:
    """What is compared, and how.

    Attributes:
        workload: what is trained.
        out: folder of all.
        configs: settings by arm; seeds are put in later.
        seeds: of each arm.
        budget: as the user wrote it.
        block: updates of a turn; None for some seconds' worth.
        sequential: one run after the other, so that one model is in memory at a time.
        keep_finished: whether the checkpoints of runs that have finished stay.
        clock: that operations are timed by.
        unnamed: arms that the user did not ask for: one that cannot be trained here is left out.
    """

    workload: Workload
    out: Path
    configs: dict[str, RunConfig]
    seeds: tuple[int, ...]
    budget: str
    block: int | None = None
    sequential: bool = False
    keep_finished: bool = False
    clock: Clock = "wall"
    unnamed: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        parse_budget(self.budget)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={self.seeds}: give at least one, each once")
        if self.block is not None and self.block < 1:
            raise ValueError(f"turn={self.block}: give at least 1 update")

    def runs(self, manifest: Manifest) -> list[list[PlannedRun]]:
        """The runs in groups that are in memory together."""
        groups = [
            [
                with_evaluations(
                    manifest.planned_run(self.out, replace(config, seed=seed)), manifest.evaluation
                )
                for config in self.configs.values()
            ]
            for seed in self.seeds
        ]
        return [[run] for group in groups for run in group] if self.sequential else groups


def arm_configs(
    workload: Workload, base: RunConfig, arms: Sequence[str], given: Sequence[str], *, control: bool
) -> dict[str, RunConfig]:
    """Settings by arm; the baseline is always among them, and random-keep unless refused.

    Args:
        workload: what is trained.
        base: settings of all arms.
        arms: names.
        given: settings of single arms, "ARM:key=value".
        control: whether random-keep is added.
    """
    if len(set(arms)) < len(arms):
        raise ValueError(f"arms={list(arms)}: give each once")
    names = [BASELINE, *([CONTROL] if control else []), *arms]
    names = list(dict.fromkeys(names))
    for name in names:
        find_arm(name)
    settings = parse_settings(list(given), names)
    found = {}
    for name in names:
        own = {**settings.get(None, {}), **settings.get(name, {})}
        found[name] = replace(workload.with_settings(base, own), arm=name)
    return found


def begun(plan: Comparison) -> Manifest | None:
    """The manifest of an earlier start in the folder, if any; raises where this comparison has no place there."""
    _check_folder(plan.out)
    old = read_manifest(plan.out)
    if old is not None:
        old.check(plan.out, workload=plan.workload.name, asked=plan.budget, configs=plan.configs)
        if old.clock != plan.clock:
            raise RunError(
                f"{plan.out} holds a comparison whose table was made by clock={old.clock!r}, not "
                f"{plan.clock!r}: continue with its own, or choose another folder"
            )
    return old


def prepare(plan: Comparison, console: Console) -> Manifest:
    """The manifest of a comparison: as it was on an earlier start, or measured now."""
    old, configs = begun(plan), plan.configs
    if old is not None and all(arm in old.arms for arm in configs):
        return old
    todo = {a: c for a, c in configs.items() if old is None or a not in old.arms or a == BASELINE}
    tell(console, f"calibrating {', '.join(todo)}")
    first = {arm: replace(config, seed=plan.seeds[0]) for arm, config in todo.items()}
    found = calibrate(plan.workload, first, together=not plan.sequential, clock=plan.clock)
    manifest = make_manifest(
        workload=plan.workload.name,
        asked=plan.budget,
        budget=parse_budget(plan.budget),
        configs=configs,
        found=found,
        seeds=len(plan.seeds),
        old=old,
    )
    manifest.write(plan.out)
    for remark in remarks(found, plan.out):
        tell(console, remark)
    return manifest


def _prepared(plan: Comparison, console: Console) -> tuple[Comparison, Manifest]:
    """The comparison without the arms that nobody asked for and this workload has no place for."""
    while True:
        try:
            return plan, prepare(plan, console)
        except ArmError as error:
            left = {arm: config for arm, config in plan.configs.items() if arm != error.arm}
            if error.arm not in plan.unnamed or left.keys() <= {BASELINE, CONTROL}:
                raise
            tell(
                console,
                f"arm {error.arm!r} is left out, since it cannot be trained here: {error.why}",
            )
            plan = replace(plan, configs=left)


def remarks(found: Calibration, out: Path) -> list[str]:
    """What a user should know about a calibration before anything runs."""
    said = [
        f"arm {arm!r} diverged while it was measured, and is expected to diverge in its runs"
        for arm in found.diverged
    ]
    worst = max(found.doubt.values())
    if worst > DOUBT:
        said.append(
            f"the table of costs is uncertain by {worst:.0%} (load {found.load[1]} on {os.cpu_count()} cores), "
            f"and so are time budgets: for a better one, delete {out / NAME} and start when the machine is quieter"
        )
    if found.constant_lr:
        said.append(
            "the learning rate is constant (the Problem has no schedule): most training decays it, and the "
            "comparison may come out differently then"
        )
    return said


def forecast(groups: Sequence[Sequence[PlannedRun]], manifest: Manifest, *, keep: bool) -> str:
    """How many runs are left, how long they take in all, and how much room checkpoints need.

    Args:
        groups: runs that are in memory together.
        manifest: of the comparison.
        keep: whether the checkpoints of finished runs stay.
    """
    left = [run for group in groups for run in group if not run.over]
    planned = sum(len(group) for group in groups)
    if not left:
        return f"all {planned} runs are over"
    # while one is written, the one that it takes the place of is still there
    room = manifest.checkpoint_bytes * sum(run.config.keep_checkpoints + 1 for run in left)
    if not keep:
        most = max(sum(r.config.keep_checkpoints + 1 for r in g if not r.over) for g in groups)
        room = manifest.checkpoint_bytes * most
    seconds = sum(run.seconds for run in left)
    counted = f"{planned} runs" if len(left) == planned else f"{len(left)} of {planned} runs left"
    size = f", up to {room / 1e9:.2g} GB of checkpoints at a time" if room else ""
    return f"{counted}, about {span(seconds)} in all by the table above{size}"


def run_shown(
    plan: Comparison,
    groups: Sequence[Sequence[PlannedRun]],
    manifest: Manifest,
    console: Console,
) -> str | None:
    """Run what is left of some runs in turns, and show how far they are; the signal that stopped them.

    Args:
        plan: what they are of.
        groups: runs that are in memory together.
        manifest: of the comparison.
        console: where it is shown.
    """
    tell(console, forecast(groups, manifest, keep=plan.keep_finished))
    board = Board(console, [run for group in groups for run in group])
    with board.shown():
        return run_in_turns(
            plan.workload,
            groups,
            block=plan.block,
            keep_finished=plan.keep_finished,
            watch=board.watch,
            ended=board.ended,
        )


def compare(plan: Comparison, console: Console) -> tuple[str | None, Verdict | None]:
    """Run what is left of a comparison, and judge it.

    Returns:
        The signal that stopped it, if one did, and the verdict, if there is enough for one.
    """
    _check_folder(plan.out)
    with locked(plan.out), each_line_once():
        plan, manifest = _prepared(plan, console)
        show_plan(manifest, console)
        groups = plan.runs(manifest)
        stopped = run_shown(plan, groups, manifest, console)
        if stopped is not None:
            return stopped, None
        return None, verdict_of(plan.out, manifest)


def verdict_of(out: Path, manifest: Manifest) -> Verdict:
    """Judge all finished runs of a folder, those of earlier starts too; written beside them."""
    paths = sorted(
        path for row in manifest.arms.values() for path in (out / row.folder).glob("seed-*")
    )
    verdict = judge([read_run(path) for path in paths if (path / "run.json").exists()])
    try:
        files.write_json(out / "verdict.json", verdict.to_dict())
        files.write_text(out / "verdict.md", verdict.markdown() + "\n")
    except OSError as error:
        raise RunError(f"cannot write the verdict to {out}: {error}") from error
    return verdict


def _check_folder(out: Path) -> None:
    if (out / "run.json").exists():
        raise RunError(f"{out} is a run folder: choose another one for a comparison")
    try:
        files.check_writable(out)
    except OSError as error:
        raise RunError(f"cannot write a comparison to {out}: {error}") from error
