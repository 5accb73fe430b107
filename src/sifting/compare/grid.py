"""The paper's grid: arms × learning rates × seeds, at equal time and at equal updates.

    DIR/DATA/comparison.json                    calibration, budget, updates of each arm
    DIR/DATA/lr-0.01/updates/ARM/seed-0         as many updates as the baseline
    DIR/DATA/lr-0.01/time/ARM/seed-0            as much reference time as the baseline

The baseline is the same run in both comparisons, and is run once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from rich.console import Console

from sifting.compare.harness import BASELINE, Plan, prepare
from sifting.compare.live import Board, plan_table
from sifting.compare.manifest import Record, with_evaluations
from sifting.compare.tables import NOTE, Entry, GridTable
from sifting.compare.turns import Cell, run_cells
from sifting.compare.workload import RecipeTarget
from sifting.training.recipe import Common
from sifting.training.run_folder import read_run

Kind = Literal["time", "updates"]
KINDS: dict[Kind, str] = {"time": "training time", "updates": "number of gradient updates"}
TITLES = {"uoft-cs/cifar100": "CIFAR-100", "ethz/food101": "Food-101"}


@dataclass(frozen=True)
class Pictured:
    """A data set of a grid.

    >>> Pictured.parse("ethz/food101@224", side=32)
    Pictured(source='ethz/food101', side=224)

    Attributes:
        source: as `--data` of the recipe takes it.
        side: height and width of its pictures.
    """

    source: str
    side: int

    @classmethod
    def parse(cls, text: str, *, side: int) -> Pictured:
        """From what a user writes: a source, and after an @ another side than the preset's."""
        source, at, tail = text.rpartition("@")
        if not at:
            return cls(text, side)
        if not source or not tail.isdigit() or int(tail) < 1:
            raise ValueError(f"datasets={text!r}: after the @ give the pictures' side, e.g. @224")
        return cls(source, int(tail))

    @property
    def folder(self) -> str:
        """Name of its folder in the grid's."""
        return f"{Path(self.source).name or 'data'}-{self.side}"

    @property
    def title(self) -> str:
        """For the tables."""
        size = f"{self.side}×{self.side}"
        return TITLES.get(self.source, f"{Path(self.source).name or self.source}, {size},")


@dataclass(frozen=True)
class Grid:
    """What a grid runs.

    Attributes:
        target: the recipe.
        out: folder of all.
        configs: settings by arm; data, learning rate and seed are put in later.
        datasets: one or several.
        max_lrs: peak learning rates.
        seeds: of every arm and learning rate.
        block: updates of a turn; None for some seconds' worth.
        sequential: one cell after the other.
    """

    target: RecipeTarget
    out: Path
    configs: dict[str, Common]
    datasets: tuple[Pictured, ...]
    max_lrs: tuple[float, ...]
    seeds: tuple[int, ...]
    block: int | None = None
    sequential: bool = False

    def __post_init__(self) -> None:
        for name in ("datasets", "max_lrs"):
            given = getattr(self, name)
            if not given or len(set(given)) < len(given):
                raise ValueError(f"{name}={given}: give at least one, each once")
        if any(not lr > 0 for lr in self.max_lrs):
            raise ValueError(f"max_lrs={self.max_lrs}: give numbers above 0")
        if len({f"{lr:g}" for lr in self.max_lrs}) < len(self.max_lrs):
            raise ValueError(f"max_lrs={self.max_lrs}: two would be written to one folder")
        folders = [data.folder for data in self.datasets]
        if len(set(folders)) < len(folders):
            raise ValueError(f"datasets: two would be written to one folder, of {folders}")

    def plan(self, data: Pictured) -> Plan:
        """The comparison at equal time on a data set: that of the baseline's own updates."""
        on = {"data": data.source, "side": data.side}
        configs = {a: self.target.with_settings(c, on) for a, c in self.configs.items()}
        updates = self.target.updates(configs[BASELINE])
        out, budget = self.out / data.folder, f"baseline:{updates}u"
        return Plan(self.target, out, configs, self.seeds, budget, self.block, self.sequential)

    def groups(self, plan: Plan, record: Record) -> list[list[Cell]]:
        """The cells on a data set, in groups that are in memory together."""
        groups = [
            [self.cell(plan, record, arm, lr, kind, seed) for arm in plan.configs]
            for seed in self.seeds
            for kind in KINDS
            for lr in self.max_lrs
        ]
        met: set[Path] = set()
        fresh = []
        for group in groups:  # the baseline's cells are in both comparisons
            fresh.append([cell for cell in group if cell.path not in met])
            met |= {cell.path for cell in group}
        return [[cell] for group in fresh for cell in group] if self.sequential else fresh

    def cell(self, plan: Plan, record: Record, arm: str, lr: float, kind: Kind, seed: int) -> Cell:
        """One run."""
        if kind == "updates" or arm == BASELINE:
            kind, record = "updates", at_equal_updates(record)
        config = self.target.with_settings(plan.configs[arm], {"max_lr": lr})
        out = plan.out / f"lr-{lr:g}" / kind
        cell = record.cell(out, replace(config, seed=seed))
        label = f", max_lr {lr:g}, same {KINDS[kind]}"
        return replace(with_evaluations(cell, record.evaluation), label=label)

    def table(self, data: Pictured, plan: Plan, record: Record, kind: Kind) -> GridTable:
        """A table as in the paper, from the cells that are over."""
        test = self.target.data(plan.configs[BASELINE])[1]
        entries = {
            (lr, arm): Entry.of(
                [
                    read_run(cell.path)
                    for cell in (
                        self.cell(plan, record, arm, lr, kind, seed) for seed in self.seeds
                    )
                    if cell.over
                ],
                chance=1 / test.classes,
                tests=len(test),
                planned=len(self.seeds),
            )
            for lr in self.max_lrs
            for arm in plan.configs
        }
        shown = at_equal_updates(record) if kind == "updates" else record
        updates = {arm: shown.arms[arm].updates for arm in plan.configs}
        title = f"{data.title} with same {KINDS[kind]}"
        return GridTable(title, tuple(self.max_lrs), tuple(plan.configs), entries, updates)


def at_equal_updates(record: Record) -> Record:
    """The record of a comparison by time, every arm with the baseline's updates instead."""
    updates = record.arms[BASELINE].updates
    arms = {
        arm: replace(row, updates=updates, seconds=row.seconds * updates / row.updates)
        for arm, row in record.arms.items()
    }
    budget = {"kind": "updates", "amount": float(updates)}
    return replace(record, asked=f"{updates}u", budget=budget, arms=arms)


def run_grid(grid: Grid, console: Console) -> tuple[str | None, list[GridTable]]:
    """Run what is left of a grid; returns the signal that stopped it, and the tables so far."""
    tables: list[GridTable] = []
    for data in grid.datasets:
        grid.target.cache.clear()  # pictures of the last data set
        plan = grid.plan(data)
        record = prepare(plan, console)
        console.print(f"{data.title.rstrip(',')}:", markup=False, highlight=False)
        console.print(plan_table(record))
        groups = grid.groups(plan, record)
        board = Board(console, [cell for group in groups for cell in group])
        with board.shown():
            stopped = run_cells(
                grid.target, groups, block=grid.block, watch=board.watch, ended=board.ended
            )
        tables += [grid.table(data, plan, record, kind) for kind in KINDS]
        _write(grid.out / "tables.md", tables)
        if stopped is not None:
            return stopped, tables
    return None, tables


def _write(path: Path, tables: list[GridTable]) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(
        "\n".join([*(table.markdown() for table in tables), NOTE, ""]), encoding="utf-8"
    )
    part.replace(path)
