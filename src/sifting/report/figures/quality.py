"""How good the choice was, over training: ρ_approx and recall, from audits with exact losses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from sifting.report.bands import Band, quality
from sifting.report.figures.canvas import (
    MOST_ARMS,
    Canvas,
    Drawing,
    Mark,
    arm_marks,
    band_line,
    heights,
    thousands,
)
from sifting.report.figures.plot import Plot, axis, reach
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
            partial(_plot, experiment, name, bands),
        )


def _plot(experiment: Experiment, name: str, bands: dict[int, Band], canvas: Canvas) -> Plot:
    lines = tuple(band_line(i, band, arms=len(bands)) for i, band in bands.items())
    if name == "recall":
        rules = tuple(sorted(_keeps(experiment))[:MOST_ARMS])
        label, low, high = "recall of the hardest", 0.0, 1.02
    else:
        rules = (1.0,)
        low, high = reach([*heights(lines), 1.0])
        label, low, high = "ρ_approx", min(low, 0.9), max(high, 1.1)
    ends = [x for band in bands.values() for x in (float(band.x[0]), float(band.x[-1]))]
    return Plot(
        axis("updates", (0.0, reach(ends)[1]), canvas.across(), write=thousands),
        axis(label, (low, high), canvas.up, side="y", grid=True),
        lines,
        rules,
    )


def _keeps(experiment: Experiment) -> set[float]:
    """What random choice recalls: the share that is kept."""
    found = set()
    for entry in experiment.entries:
        selector = entry.run.config.get("selector")
        keep = selector.get("keep") if isinstance(selector, Mapping) else None
        if isinstance(keep, (int, float)) and 0 < keep < 1:
            found.add(float(keep))
    return found or {0.5}
