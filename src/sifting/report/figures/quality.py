"""How good the choice was, over training: ρ_approx and recall, from audits with exact losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from matplotlib.figure import Figure

from sifting.report.bands import Band, quality
from sifting.report.figures.canvas import (
    MOST_ARMS,
    Canvas,
    Drawing,
    Mark,
    arm_marks,
    dashed,
    new_axes,
    plot_band,
    thousands,
)
from sifting.report.reading import Experiment
from sifting.report.tables import quality_table

GROUP = "Selection quality over training"


def drawings(experiment: Experiment) -> Iterator[Drawing]:
    """Two figures, where runs were audited."""
    table = quality_table(experiment)
    if not table.rows:
        return
    for name, key, line, title, about in (
        (
            "rho_approx",
            "rho",
            "break-even",
            "ρ_approx: loss of the kept over that of the candidates",
            "From audits with exact losses. The dashed line at 1 is break-even: below it, the choice is "
            "worse than random.",
        ),
        (
            "recall",
            "recall",
            "random choice",
            "Recall of the hardest candidates",
            "Share of the candidates with the highest exact loss that were kept. The dashed line is what "
            "choosing at random gives.",
        ),
    ):
        arms = list(experiment.arms.values())[:MOST_ARMS]
        found = {i: quality(entries, name) for i, entries in enumerate(arms)}
        bands = {i: band for i, band in found.items() if band is not None}
        marks = arm_marks(list(experiment.arms), list(bands))
        yield Drawing(
            key,
            GROUP,
            title,
            about,
            table,
            (*marks, Mark("line", line)),
            partial(_draw, experiment, name, bands),
        )


def _draw(experiment: Experiment, name: str, bands: dict[int, Band], canvas: Canvas) -> Figure:
    figure, axes = new_axes(canvas)
    for index, band in bands.items():
        plot_band(axes, index, band, canvas, arms=len(bands))
    if name == "recall":
        for keep in sorted(_keeps(experiment))[:MOST_ARMS]:
            dashed(axes, keep, canvas)
        axes.set_ylim(0, 1.02)
        axes.set_ylabel("recall of the hardest")
    else:
        dashed(axes, 1.0, canvas)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.9), max(high, 1.1))
        axes.set_ylabel("ρ_approx")
    axes.set_xlim(left=0)
    axes.set_xlabel("updates")
    axes.xaxis.set_major_formatter(lambda value, _: thousands(value))
    return figure


def _keeps(experiment: Experiment) -> set[float]:
    """What random choice recalls: the share that is kept."""
    found = set()
    for entry in experiment.entries:
        selector = entry.run.config.get("selector")
        keep = selector.get("keep") if isinstance(selector, Mapping) else None
        if isinstance(keep, (int, float)) and 0 < keep < 1:
            found.add(float(keep))
    return found or {0.5}
