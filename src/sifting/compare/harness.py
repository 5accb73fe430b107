"""A comparison from start to end: calibrate, plan, run the cells in turns, judge."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from sifting.compare.budget import parse_budget
from sifting.compare.calibration import calibrate
from sifting.compare.live import Board, plan_table
from sifting.compare.manifest import NAME, Record, make_record, read_record, with_evaluations
from sifting.compare.turns import Cell, run_cells
from sifting.compare.workload import Target, parse_settings
from sifting.training.arms import find_arm
from sifting.training.recipe import Common
from sifting.training.run_folder import RunError, read_run, write_json
from sifting.verdict import Verdict, judge

BASELINE, CONTROL = "baseline", "random"
DOUBT = 0.02  # noise in an arm's time over the baseline's from which a user is told


@dataclass(frozen=True)
class Plan:
    """What is compared, and how.

    Attributes:
        target: what is trained.
        out: folder of all.
        configs: settings by arm; seeds are put in later.
        seeds: of each arm.
        budget: as the user wrote it.
        block: updates of a turn; None for some seconds' worth.
        sequential: one cell after the other, so that one model is in memory at a time.
    """

    target: Target
    out: Path
    configs: dict[str, Common]
    seeds: tuple[int, ...]
    budget: str
    block: int | None = None
    sequential: bool = False

    def __post_init__(self) -> None:
        parse_budget(self.budget)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise ValueError(f"seeds={self.seeds}: give at least one, each once")
        if self.block is not None and self.block < 1:
            raise ValueError(f"turn={self.block}: give at least 1 update")

    def cells(self, record: Record) -> list[list[Cell]]:
        """The cells in groups that are in memory together."""
        groups = [
            [
                with_evaluations(
                    record.cell(self.out, replace(config, seed=seed)), record.evaluation
                )
                for config in self.configs.values()
            ]
            for seed in self.seeds
        ]
        return [[cell] for group in groups for cell in group] if self.sequential else groups


def configs_of(
    target: Target, base: Common, arms: Sequence[str], given: Sequence[str], *, control: bool
) -> dict[str, Common]:
    """Settings by arm; the baseline is always among them, and random-keep unless refused.

    Args:
        target: what is trained.
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
        found[name] = replace(target.with_settings(base, own), arm=name)
    return found


def prepare(plan: Plan, console: Console) -> Record:
    """The record of a plan: as it was on an earlier start, or measured now."""
    _check_folder(plan.out)
    old = read_record(plan.out)
    configs = plan.configs
    if old is not None:
        old.check(plan.out, target=plan.target.name, asked=plan.budget, configs=configs)
        if all(arm in old.arms for arm in configs):
            return old
    todo = {a: c for a, c in configs.items() if old is None or a not in old.arms or a == BASELINE}
    console.print(f"calibrating {', '.join(todo)}", markup=False, highlight=False)
    first = {arm: replace(config, seed=plan.seeds[0]) for arm, config in todo.items()}
    record = make_record(
        target=plan.target.name,
        asked=plan.budget,
        budget=parse_budget(plan.budget),
        configs=configs,
        found=calibrate(plan.target, first, together=not plan.sequential),
        old=old,
    )
    record.write(plan.out)
    worst = max(record.calibrations[-1]["doubt"].values())
    if worst > DOUBT:
        load = record.calibrations[-1]["load"][1]
        console.print(
            f"the table is uncertain by {worst:.0%} (load {load} on {os.cpu_count()} cores), and so are time "
            f"budgets: for a better one, delete {plan.out / NAME} and start when the machine is quieter",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return record


def compare(plan: Plan, console: Console) -> tuple[str | None, Verdict | None]:
    """Run what is left of a comparison, and judge it.

    Returns:
        The signal that stopped it, if one did, and the verdict, if there is enough for one.
    """
    record = prepare(plan, console)
    console.print(plan_table(record))
    groups = plan.cells(record)
    board = Board(console, [cell for group in groups for cell in group])
    with board.shown():
        stopped = run_cells(
            plan.target, groups, block=plan.block, watch=board.watch, ended=board.ended
        )
    if stopped is not None:
        return stopped, None
    return None, verdict_of(plan.out, record)


def verdict_of(out: Path, record: Record) -> Verdict:
    """Judge all finished cells of a folder, those of earlier starts too; written beside them."""
    paths = sorted(
        path for row in record.arms.values() for path in (out / row.folder).glob("seed-*")
    )
    verdict = judge([read_run(path) for path in paths if (path / "run.json").exists()])
    write_json(out / "verdict.json", verdict.to_dict())
    part = out / ".verdict.md.part"
    part.write_text(verdict.markdown() + "\n", encoding="utf-8")
    part.replace(out / "verdict.md")
    return verdict


def _check_folder(out: Path) -> None:
    if (out / "run.json").exists():
        raise RunError(f"{out} is a run folder: choose another one for a comparison")
    probe = out / ".probe"
    try:
        out.mkdir(parents=True, exist_ok=True)
        probe.write_text("")
        probe.unlink()
    except OSError as error:
        raise RunError(f"cannot write a comparison to {out}: {error}") from error
