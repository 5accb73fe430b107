"""The metric against time and against samples back-propagated."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from matplotlib.figure import Figure

from sifting.report.bands import Band, learning
from sifting.report.figures.canvas import (
    MOST_ARMS,
    Canvas,
    Drawing,
    Mark,
    arm_marks,
    capital,
    dashed,
    new_axes,
    plot_band,
    thousands,
)
from sifting.report.reading import Experiment
from sifting.report.sanitize import clip
from sifting.report.tables import learning_table

EARLY = 0.1  # the first steep part of a curve is below the frame: what differs is above
GROUP = "Learning curves"


def drawings(experiment: Experiment) -> Iterator[Drawing]:
    """Against time, and against samples, where a run was evaluated."""
    verdict = experiment.verdict
    merit = clip(verdict.metric, 40)
    time = "reference time" if verdict.axis == "reference" else "training time"
    spent = {verdict.axis: time, "samples": "samples back-propagated"}
    for axis, words in spent.items():
        bands = _bands(experiment, axis)
        if not bands:
            continue
        target = () if verdict.target is None else (Mark("line", "target"),)
        yield Drawing(
            "samples" if axis == "samples" else "time",
            GROUP,
            f"{capital(merit)} against {words}",
            f"Mean {merit} of each arm against {words}; the band is one standard deviation over seeds."
            + (" The dashed line is the target." if target else ""),
            learning_table(experiment, axis),
            arm_marks(list(experiment.arms), list(bands)) + target,
            partial(_draw, experiment, axis, bands),
        )


def _bands(experiment: Experiment, axis: str) -> dict[int, Band]:
    """Of each arm that has evaluations, by its number."""
    arms = list(experiment.arms.values())[:MOST_ARMS]
    found = {i: learning(entries, axis) for i, entries in enumerate(arms)}
    return {i: band for i, band in found.items() if band is not None}


def _draw(experiment: Experiment, axis: str, bands: dict[int, Band], canvas: Canvas) -> Figure:
    figure, axes = new_axes(canvas)
    verdict = experiment.verdict
    scale = 100.0 if verdict.percent else 1.0
    early = []
    for index, band in bands.items():
        plot_band(axes, index, band, canvas, arms=len(bands), scale=scale)
        early.append(scale * float(np.interp(EARLY * band.x[-1], band.x, band.mean)))
    if verdict.lower_is_better:
        axes.set_ylim(top=min(axes.get_ylim()[1], max(early)))
    else:
        axes.set_ylim(bottom=max(axes.get_ylim()[0], min(early)))
    if verdict.target is not None:
        dashed(axes, scale * verdict.target, canvas)
    axes.set_xlim(left=0)
    if axis == "samples":
        axes.set_xlabel("samples back-propagated")
        axes.xaxis.set_major_formatter(lambda value, _: thousands(value))
    else:
        axes.set_xlabel("reference seconds" if axis == "reference" else "seconds of training")
    axes.set_ylabel(clip(f"{verdict.metric} (%)" if verdict.percent else verdict.metric, 30))
    return figure
