"""A verdict as a table and as Markdown. Nothing here computes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sifting.markdown import Markdown, code
from sifting.markdown import table as markdown_table
from sifting.terminal import printable
from sifting.verdict import advice, wording
from sifting.verdict.formats import gap, ratio, shown_metric
from sifting.verdict.intervals import Estimate
from sifting.verdict.prose import Prose, name, prose

if TYPE_CHECKING:
    from sifting.verdict import Verdict
    from sifting.verdict.pairing import ArmVerdict


def columns(verdict: Verdict) -> list[Prose]:
    """The columns of the table: what decides comes first, as a phone shows no more than that."""
    target = prose("target") if verdict.target is None else shown_metric(verdict, verdict.target)
    return [
        prose("arm"),
        prose("points to baseline" if verdict.percent else "difference to baseline"),
        "time to " + target + " ÷ baseline",
        name(verdict.metric) + (" %" if verdict.percent else ""),
        prose("samples ÷ baseline"),
        prose("time in all ÷ baseline"),
        prose("seeds"),
    ]


def table(verdict: Verdict) -> tuple[list[str], list[list[str]]]:
    """Columns and rows of strings."""
    return [column.bare() for column in columns(verdict)], [
        [printable(arm.name), *_cells(verdict, arm)] for arm in verdict.arms
    ]


def _cells(verdict: Verdict, arm: ArmVerdict) -> list[str]:
    scale, digits = (100.0, 2) if verdict.percent else (1.0, 4)
    mean = "–" if arm.mean is None else f"{scale * arm.mean:.{digits}f}"
    spread = "" if arm.std is None else f" ± {scale * arm.std:.{digits}f}"
    seeds = str(arm.runs) if arm.finished == arm.runs else f"{arm.finished} of {arm.runs}"
    base = arm.role == "baseline"
    return [
        "–" if arm.difference is None else gap(verdict, arm.difference).replace(" points", ""),
        _ratio(arm, arm.time_ratio, base=base),
        mean + spread,
        _ratio(arm, arm.samples_ratio, base=base),
        "1" if base else "–" if arm.cost is None else ratio(arm.cost),
        seeds,
    ]


def _ratio(arm: ArmVerdict, estimate: Estimate | None, *, base: bool) -> str:
    if estimate is not None:
        return ratio(estimate)
    if not arm.finished:
        return "–"
    if arm.reached < arm.runs:
        return f"reached by {arm.reached} of {arm.runs}"
    return "1" if base else "–"


def markdown(verdict: Verdict) -> str:
    """The verdict as Markdown; names from runs are code, and so never taken for Markdown."""
    heads = [Markdown(column.markdown()) for column in columns(verdict)]
    rows = [[code(name(arm.name).bare() or "–"), *_cells(verdict, arm)] for arm in verdict.arms]
    parts = [
        advice.overall(verdict).markdown(),
        markdown_table(heads, rows),
        "\n".join(f"- {wording.sentence(verdict, arm).markdown()}" for arm in verdict.arms),
        *(note.markdown() for note in wording.notes(verdict)),
    ]
    return "\n\n".join(parts) + "\n"
