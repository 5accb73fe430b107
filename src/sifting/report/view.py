"""What a page shows of an experiment, as plain values for the templates."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from markupsafe import Markup

from sifting.report import provenance, tables
from sifting.report.figures import Drawing, drawings
from sifting.report.figures.canvas import NARROW, WIDE, Mark
from sifting.report.figures.clocks import GROUP as COST
from sifting.report.reading import Experiment
from sifting.report.sanitize import clip
from sifting.report.tables import MOST_ROWS, Table
from sifting.verdict import advice, wording
from sifting.verdict.deciding import Outcome
from sifting.verdict.prose import Prose, name, prose

OUTCOMES: dict[Outcome, str] = {
    "pays": "Selection pays",
    "open": "Not settled",
    "no gain": "No measurable gain",
    "harm": "Selection does harm",
    "cannot judge": "Not judged",
}
CAPTION = "± is the standard deviation over seeds; ( – ) a 95 % interval"
MOST_WARNINGS = 20


@dataclass(frozen=True)
class Shown:
    """A figure in both its sizes, or why it cannot be drawn."""

    id: str
    drawing: Drawing
    wide: Markup = field(default_factory=Markup)
    narrow: Markup = field(default_factory=Markup)
    problem: str = ""
    own_legend: bool = False


@dataclass(frozen=True)
class Group:
    """Figures under one heading and with one legend."""

    title: str
    figures: tuple[Shown, ...]

    @property
    def cost(self) -> bool:
        """Whether it is the group that has the table of exits beside it."""
        return self.title == COST

    @property
    def marks(self) -> tuple[Mark, ...]:
        """What is in any of them, once."""
        found = dict.fromkeys(m for f in self.figures if not f.problem for m in f.drawing.marks)
        return (*(m for m in found if m.kind == "arm"), *(m for m in found if m.kind != "arm"))


@dataclass(frozen=True)
class Warned:
    """A warning of the library, and the runs that it was of."""

    message: str
    runs: Prose


@dataclass(frozen=True)
class ExperimentView:
    """An experiment on a page; where `full` is not set, its verdict and table alone."""

    id: str
    title: str
    full: bool = False
    problem: str = ""
    outcome: str = ""
    overall: Prose = field(default_factory=Prose)
    table: Table | None = None
    sentences: tuple[Prose, ...] = ()
    notes: tuple[Prose, ...] = ()
    warnings: tuple[Warned, ...] = ()
    groups: tuple[Group, ...] = ()
    tokens: Table | None = None
    exits: Table | None = None
    different: Table | None = None
    common: Table | None = None
    machines: Table | None = None
    runs: Table | None = None


def view(experiment: Experiment, number: int, *, full: bool) -> ExperimentView:
    """What is shown of an experiment.

    Args:
        experiment: of `collect`.
        number: which makes its ids.
        full: with its figures, settings and runs.
    """
    at = f"e{number}"
    try:
        return _view(experiment, at, full=full)
    except Exception as error:  # it is left out by name, and the others are shown
        problem = f"unexpected {type(error).__name__}: {clip(str(error), 300)}"
        return ExperimentView(at, experiment.title, problem=problem)


def _view(experiment: Experiment, at: str, *, full: bool) -> ExperimentView:
    verdict = experiment.verdict
    shown: dict[str, Any] = {}
    if full:
        different, common = provenance.settings_tables(experiment)
        shown = {
            "sentences": tuple(wording.sentence(verdict, a) for a in verdict.arms[:MOST_ROWS]),
            "notes": tuple(wording.notes(verdict)),
            "groups": _groups(experiment, at),
            "tokens": tables.token_table(experiment),
            "exits": tables.exit_table(experiment),
            "different": different,
            "common": common,
            "machines": provenance.machines(experiment),
            "runs": provenance.run_table(experiment),
        }
    return ExperimentView(
        at,
        experiment.title,
        full=full,
        outcome=verdict.outcome,
        overall=advice.overall(verdict),
        table=Table(CAPTION, *verdict.table()),
        warnings=warnings_of(experiment),
        **shown,
    )


def warnings_of(experiment: Experiment) -> tuple[Warned, ...]:
    """The warnings of its runs, each once."""
    said: dict[str, dict[str, list[int]]] = {}
    for entry in experiment.entries:
        for message in dict.fromkeys(entry.warnings):
            said.setdefault(message, {}).setdefault(entry.curve.arm, []).append(entry.curve.seed)
    return tuple(Warned(message, _runs(of)) for message, of in [*said.items()][:MOST_WARNINGS])


def _runs(arms: dict[str, list[int]]) -> Prose:
    found = prose("")
    for i, (arm, seeds) in enumerate([*arms.items()][:MOST_WARNINGS]):
        shown = clip(", ".join(map(str, sorted(seeds))), 60)
        found += ("; " if i else "") + name(arm) + f", seed{'s' * (len(seeds) > 1)} {shown}"
    return found


def _groups(experiment: Experiment, at: str) -> tuple[Group, ...]:
    found: dict[str, list[Shown]] = {}
    for drawing in drawings(experiment):
        found.setdefault(drawing.group, []).append(_shown(drawing, f"{at}-{drawing.key}"))
    return tuple(Group(title, tuple(figures)) for title, figures in found.items())


def _shown(drawing: Drawing, at: str) -> Shown:
    try:
        wide = Markup(drawing.svg(at, WIDE))
        narrow = Markup(drawing.svg(f"{at}-n", NARROW))
    except Exception as error:  # a figure never costs the page
        problem = f"unexpected {type(error).__name__}: {clip(str(error), 300)}"
        return Shown(at, drawing, problem=problem)
    return Shown(at, drawing, wide, narrow, own_legend=drawing.group == COST)
