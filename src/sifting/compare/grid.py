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

from sifting import files
from sifting.compare.harness import BASELINE, Comparison, prepare, run_shown
from sifting.compare.live import show_plan, tell
from sifting.compare.manifest import Manifest, with_evaluations
from sifting.compare.tables import NOTE, GridField, GridTable
from sifting.compare.turns import PlannedRun
from sifting.compare.workload import RecipeWorkload
from sifting.log import each_line_once
from sifting.training.config import RunConfig
from sifting.training.locks import locked
from sifting.training.run_folder import RunError, read_run

Equal = Literal["time", "updates"]
KINDS: dict[Equal, str] = {"time": "training time", "updates": "number of gradient updates"}
TITLES = {"uoft-cs/cifar100": "CIFAR-100", "ethz/food101": "Food-101"}


@dataclass(frozen=True)
class ImageSource:
    """A data set of a grid.

    >>> ImageSource.parse("ethz/food101@224", side=32)
    ImageSource(source='ethz/food101', side=224)

    Attributes:
        source: as `--data` of the recipe takes it.
        side: height and width of its images.
    """

    source: str
    side: int

    @classmethod
    def parse(cls, text: str, *, side: int) -> ImageSource:
        """From what a user writes: a source, and after an @ another side than the preset's."""
        source, at, tail = text.rpartition("@")
        if not at:
            return cls(text, side)
        if not source or not tail.isdigit() or int(tail) < 1:
            raise ValueError(f"datasets={text!r}: after the @ give the images' side, e.g. @224")
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
        workload: the recipe.
        out: folder of all.
        configs: settings by arm; data, learning rate and seed are put in later.
        datasets: one or several.
        max_lrs: peak learning rates.
        seeds: of every arm and learning rate.
        block: updates of a turn; None for some seconds' worth.
        sequential: one run after the other.
        keep_finished: whether the checkpoints of runs that have finished stay.
    """

    workload: RecipeWorkload
    out: Path
    configs: dict[str, RunConfig]
    datasets: tuple[ImageSource, ...]
    max_lrs: tuple[float, ...]
    seeds: tuple[int, ...]
    block: int | None = None
    sequential: bool = False
    keep_finished: bool = False

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

    def plan(self, data: ImageSource) -> Comparison:
        """The comparison at equal time on a data set: that of the baseline's own updates."""
        on = {"data": data.source, "side": data.side}
        configs = {a: self.workload.with_settings(c, on) for a, c in self.configs.items()}
        updates = self.workload.updates(configs[BASELINE])
        out, budget = self.out / data.folder, f"baseline:{updates}u"
        how = self.block, self.sequential, self.keep_finished
        return Comparison(self.workload, out, configs, self.seeds, budget, *how)

    def groups(self, plan: Comparison, manifest: Manifest) -> list[list[PlannedRun]]:
        """The runs on a data set, in groups that are in memory together."""
        groups = [
            [self.planned_run(plan, manifest, arm, lr, kind, seed) for arm in plan.configs]
            for seed in self.seeds
            for kind in KINDS
            for lr in self.max_lrs
        ]
        met: set[Path] = set()
        fresh = []
        for group in groups:  # the baseline's runs are in both comparisons
            fresh.append([run for run in group if run.path not in met])
            met |= {run.path for run in group}
        return [[run] for group in fresh for run in group] if self.sequential else fresh

    def planned_run(
        self, plan: Comparison, manifest: Manifest, arm: str, lr: float, kind: Equal, seed: int
    ) -> PlannedRun:
        """One run."""
        if kind == "updates" or arm == BASELINE:
            kind, manifest = "updates", at_equal_updates(manifest)
        config = self.workload.with_settings(plan.configs[arm], {"max_lr": lr})
        out = plan.out / f"lr-{lr:g}" / kind
        run = manifest.planned_run(out, replace(config, seed=seed))
        label = f", max_lr {lr:g}, same {KINDS[kind]}"
        return replace(with_evaluations(run, manifest.evaluation), label=label)

    def table(
        self, data: ImageSource, plan: Comparison, manifest: Manifest, kind: Equal
    ) -> GridTable:
        """A table as in the paper, from the runs that are over."""
        test = self.workload.data(plan.configs[BASELINE])[1]
        entries = {
            (lr, arm): GridField.of(
                [
                    read_run(run.path)
                    for run in (
                        self.planned_run(plan, manifest, arm, lr, kind, seed) for seed in self.seeds
                    )
                    if run.over
                ],
                chance=1 / test.classes,
                tests=len(test),
                planned=len(self.seeds),
            )
            for lr in self.max_lrs
            for arm in plan.configs
        }
        shown = at_equal_updates(manifest) if kind == "updates" else manifest
        updates = {arm: shown.arms[arm].updates for arm in plan.configs}
        title = f"{data.title} with same {KINDS[kind]}"
        return GridTable(title, tuple(self.max_lrs), tuple(plan.configs), entries, updates)


def at_equal_updates(manifest: Manifest) -> Manifest:
    """The manifest of a comparison by time, every arm with the baseline's updates instead."""
    updates = manifest.arms[BASELINE].updates
    arms = {
        arm: replace(row, updates=updates, seconds=row.seconds * updates / row.updates)
        for arm, row in manifest.arms.items()
    }
    budget = {"kind": "updates", "amount": float(updates)}
    return replace(manifest, asked=f"{updates}u", budget=budget, arms=arms)


def run_grid(grid: Grid, console: Console) -> tuple[str | None, list[GridTable]]:
    """Run what is left of a grid; returns the signal that stopped it, and the tables so far."""
    tables: list[GridTable] = []
    with locked(grid.out), each_line_once():
        for data in grid.datasets:
            grid.workload.cache.clear()  # images of the last data set
            plan = grid.plan(data)
            manifest = prepare(plan, console)
            tell(console, f"{data.title.rstrip(',')}:")
            show_plan(manifest, console)
            groups = grid.groups(plan, manifest)
            stopped = run_shown(plan, groups, manifest, console)
            tables += [grid.table(data, plan, manifest, kind) for kind in KINDS]
            _write(grid.out / "tables.md", tables)
            if stopped is not None:
                return stopped, tables
    return None, tables


def _write(path: Path, tables: list[GridTable]) -> None:
    try:
        files.write_text(path, "\n".join([*(table.markdown() for table in tables), NOTE, ""]))
    except OSError as error:
        raise RunError(f"cannot write {path}: {error}") from error
