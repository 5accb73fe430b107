"""`sift advise TARGET [preset] …`: will selection pay here, how, and how much?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import tyro
from rich.console import Console

from sifting import files
from sifting.advice.observing import EFFORT, advise, check_asked
from sifting.advice.result import Advice
from sifting.advice.wording import COLUMNS, rows, trial_lines
from sifting.cli.parsing import (
    alone_at,
    check_out_file,
    parse_preset,
    refuse,
    run_many,
    writing,
)
from sifting.compare.harness import Comparison, arm_configs, begun, compare
from sifting.compare.live import tell
from sifting.compare.workload import (
    FunctionWorkload,
    RecipeWorkload,
    named_workload,
    parse_settings,
)
from sifting.rng import seed_all
from sifting.terminal import print_table
from sifting.training.assemble import check_start
from sifting.training.config import RunConfig
from sifting.training.recipe import RECIPES
from sifting.verdict.terminal import show

C = TypeVar("C")
LABEL = "sift advise"
USAGE = (
    f"{LABEL} {{{','.join(RECIPES)},module:function,module:RECIPE}} [PRESET] [--updates N] [--out FILE.json] …\n"
    f"`{LABEL} TARGET [PRESET] --help` lists the options"
)


@dataclass(frozen=True)
class AdviseOptions(Generic[C]):
    """What to look at, and where to write."""

    config: C
    out: Path | None = None
    """A JSON file for the advice."""
    part: float = 1.0
    """Share of the run that is trained for it; the last phase seen stands for the rest."""
    start: Path | None = None
    """A run folder: begin with its newest checkpoint, and advise on the updates that are left."""
    effort: float = EFFORT
    """Share of the run's time that looks and trials may take beside it."""
    set: Annotated[tuple[str, ...], tyro.conf.UseAppendAction] = ()
    """A setting of the problem (max_lr=0.005); may be given often."""
    confirm: Path | None = None
    """A folder: compare the autopilot with the plain run there, at equal time, as sift compare does."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """Of the comparison."""
    clock: Literal["wall", "cpu"] = "wall"
    """How the comparison times operations."""


@dataclass(frozen=True)
class Asked:
    """What some arguments mean."""

    workload: RecipeWorkload | FunctionWorkload
    config: RunConfig
    updates: int
    options: AdviseOptions[Any]

    @property
    def comparison(self) -> Comparison | None:
        """The autopilot against the plain run at equal time, where that is asked for."""
        out = self.options.confirm
        if out is None:
            return None
        # an arm that is dearer than the baseline has fewer updates, and each evaluation needs one
        evaluations = min(self.config.evaluations, max(1, self.updates // 2))
        config = replace(self.config, updates=None, evaluations=evaluations)
        return Comparison(
            self.workload,
            out,
            arm_configs(self.workload, config, ["auto"], (), control=True),
            self.options.seeds,
            f"baseline:{self.updates}u",
            clock=self.options.clock,
        )


def main(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    return run_many(argv, label=LABEL, text=USAGE, work=_run, continues=False)


def parse(argv: list[str]) -> Asked:
    """What the arguments mean."""
    workload = named_workload(argv[0], command=LABEL)
    preset, options = parse_preset(
        workload.presets,
        argv[1:],
        make=lambda config: AdviseOptions(config=config),
        prog=f"{LABEL} {argv[0]}",
        about="Along a plain run: what selection would save, by which scorer, when.",
    )
    config: RunConfig = options.config
    refuse(config, workload.presets[preset], {"arm": "the autopilot, which only looks"})
    if options.out is not None:
        check_out_file(options.out)
    given = parse_settings(list(options.set), [])
    config = workload.with_settings(config, given.get(None, {}))
    if isinstance(workload, RecipeWorkload):
        updates: int | None = workload.updates(config)
    else:
        updates = workload.planned(config)
    if updates is None:
        raise ValueError(f"{argv[0]} does not say how long it trains: give --updates")
    asked = Asked(workload, config, updates, options)
    # what would fail after a whole run fails before it
    check_asked(updates=updates, part=options.part, effort=options.effort)
    if options.start is not None:
        check_start(options.start, updates)
    if (comparison := asked.comparison) is not None:
        begun(comparison)
    return asked


def _run(words: list[str], console: Console) -> str | None:
    asked = parse(words)
    with alone_at(asked.options.out):
        return _advise(asked, console)


def _advise(asked: Asked, console: Console) -> str | None:
    workload, config, options = asked.workload, asked.config, asked.options
    seed_all(config.seed)
    problem = workload.problem(config)
    updates = f"{asked.updates} updates"
    if options.start is not None:
        updates = f"those of {updates} that are left at {options.start}"
    tell(
        console,
        f"{workload.name}: {options.part:.0%} of {updates} plainly, looking at what selection would do",
    )

    def watch(record: Mapping[str, Any]) -> None:
        if record["kind"] == "decision":
            tell(console, f"update {record['step']} of {asked.updates}: {record['why']}")

    advice = advise(
        problem,
        updates=asked.updates,
        part=options.part,
        effort=options.effort,
        start=options.start,
        config=config,
        target=workload.name,
        watch=watch,
    )
    show_advice(advice, console)
    found = {**advice.to_dict(), "sentence": advice.sentence, "confirmed": None}
    stopped = None
    _write(options.out, found)  # whatever comes of the comparison
    if (comparison := asked.comparison) is not None:
        if options.start is not None:
            tell(
                console,
                f"the comparison begins with new weights, not with those of {options.start}",
            )
        stopped, verdict = compare(comparison, console)
        if verdict is not None:
            show(verdict, console)
            found["confirmed"] = verdict.to_dict()
            _write(options.out, found)
    if options.out is not None:
        tell(console, options.out)
    return stopped


def _write(out: Path | None, found: Mapping[str, Any]) -> None:
    if out is not None:
        with writing(out):
            files.write_json(out, found)


def show_advice(advice: Advice, console: Console) -> None:
    """Print the table, what trials found, notes, and the sentence."""
    found = rows(advice)
    if found:
        phases = [row[0] for row in found]
        again = [phase == before for phase, before in zip(phases, ["", *phases], strict=False)]
        shown = [["" if same else row[0], *row[1:]] for row, same in zip(found, again, strict=True)]
        print_table(console, COLUMNS, shown)
    for line in [*trial_lines(advice), str(advice)]:
        tell(console, line)
