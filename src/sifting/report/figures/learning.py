"""The metric against time and against samples back-propagated."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from sifting.report.bands import Band, learning
from sifting.report.figures.canvas import (
    MOST_ARMS,
    Canvas,
    Drawing,
    Mark,
    arm_marks,
    band_line,
    capital,
    heights,
    thousands,
)
from sifting.report.figures.plot import Plot, axis, reach
from sifting.report.reading import Experiment
from sifting.report.sanitize import clip
from sifting.report.tables import learning_table

EARLY = 0.1  # the first steep part of a curve is below the frame: what differs is above
GROUP = "Learning curves"
LABELS = {"samples": "samples back-propagated", "reference": "reference seconds"}


def drawings(experiment: Experiment) -> Iterator[Drawing]:
    """Against time, and against samples, where a run was evaluated."""
    verdict = experiment.verdict
    merit = clip(verdict.metric, 40)
    time = "reference time" if verdict.axis == "reference" else "training time"
    spent = {verdict.axis: time, "samples": "samples back-propagated"}
    for spent_on, words in spent.items():
        bands = _bands(experiment, spent_on)
        if not bands:
            continue
        target = () if verdict.target is None else (Mark("line", "target"),)
        yield Drawing(
            "samples" if spent_on == "samples" else "time",
            GROUP,
            f"{capital(merit)} against {words}",
            f"Mean {merit} of each arm against {words}; the band is one standard deviation over seeds."
            + (" The dashed line is the target." if target else ""),
            learning_table(experiment, spent_on),
            arm_marks(list(experiment.arms), list(bands)) + target,
            partial(_plot, experiment, spent_on, bands),
        )


def _bands(experiment: Experiment, name: str) -> dict[int, Band]:
    """Of each arm that has evaluations, by its number."""
    arms = list(experiment.arms.values())[:MOST_ARMS]
    found = {i: learning(entries, name) for i, entries in enumerate(arms)}
    return {i: band for i, band in found.items() if band is not None}


def _plot(experiment: Experiment, name: str, bands: dict[int, Band], canvas: Canvas) -> Plot:
    verdict = experiment.verdict
    scale = 100.0 if verdict.percent else 1.0
    lines = tuple(band_line(i, band, arms=len(bands), scale=scale) for i, band in bands.items())
    early = [
        scale * float(np.interp(EARLY * band.x[-1], band.x, band.mean)) for band in bands.values()
    ]
    low, high = reach(heights(lines))
    if verdict.lower_is_better:
        high = min(high, max(early))
    else:
        low = max(low, min(early))
    last = max(float(band.x[-1]) for band in bands.values())
    first = min(float(band.x[0]) for band in bands.values())
    label = LABELS.get(name, "seconds of training")
    metric = clip(f"{verdict.metric} (%)" if verdict.percent else verdict.metric, 30)
    return Plot(
        axis(
            label,
            (0.0, reach([first, last])[1]),
            canvas.across(),
            write=thousands if name == "samples" else None,
        ),
        axis(metric, (low, high), canvas.up, side="y", grid=True),
        lines,
        rules=() if verdict.target is None else (scale * verdict.target,),
    )
