"""Means over seeds and their spread: what the metrics draw. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from sifting.report.reading import Entry
from sifting.verdict.curves import Floats

CLOSE = 0.5  # of the usual distance: evaluations that are closer say the same thing twice


@dataclass(frozen=True)
class Band:
    """The mean over seeds of something against something, and its standard deviation.

    Attributes:
        x: what had been spent, mean over seeds.
        mean: of the metric.
        std: its standard deviation.
        seeds: how many there are.
    """

    x: Floats
    mean: Floats
    std: Floats
    seeds: int


def shown(entries: Sequence[Entry]) -> list[Entry]:
    """The finished runs of an arm, or all where none is yet."""
    done = [e for e in entries if e.run.status == "finished"]
    return done or list(entries)


def band(curves: Sequence[tuple[Floats, Floats, Floats]]) -> Band | None:
    """Mean and spread of curves, at the updates that all of them cover.

    Seeds are averaged update by update, not second by second: one that ran while the machine was
    busy is as far as the others, only later. Their ends are averaged as ends, where they are about
    as far: else the last stretch would be of some seeds' ends and of other seeds' middles.

    Args:
        curves: updates, x and y of each seed, updates increasing.
    """
    curves = [_without_twin(curve) for curve in curves if len(curve[0])]
    if not curves:
        return None
    lasts = [float(c[0][-1]) for c in curves]
    low, high = max(float(c[0][0]) for c in curves), min(lasts)
    steps = np.unique(np.concatenate([c[0] for c in curves]))
    steps = steps[(steps >= low) & (steps <= high)]
    if not len(steps):
        return None
    usual = _usual(steps)
    ends = max(lasts) - high <= usual
    if ends:
        steps = steps[steps < high - CLOSE * usual]
    x_SP, y_SP = (
        np.stack(
            [np.append(np.interp(steps, c[0], c[i]), [c[i][-1]] if ends else []) for c in curves]
        )
        for i in (1, 2)
    )
    std = y_SP.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(y_SP.shape[1])
    return Band(x_SP.mean(axis=0), y_SP.mean(axis=0), std, len(curves))


def _usual(steps: Floats) -> float:
    """The usual distance between evaluations."""
    return float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0


def _without_twin(curve: tuple[Floats, Floats, Floats]) -> tuple[Floats, Floats, Floats]:
    """A curve without the last evaluation but one, where the last came right after it.

    The two differ by noise alone, and between them the line would fall or rise like a cliff.
    """
    steps = curve[0]
    if len(steps) < 3 or steps[-1] - steps[-2] >= CLOSE * _usual(steps[:-1]):
        return curve
    keep = np.arange(len(steps)) != len(steps) - 2
    x, y = curve[1][keep], curve[2][keep]
    return steps[keep], x, y


def thinned(band: Band, most: int) -> Band:
    """A band of at most four points in each of so many columns, which looks as the whole does.

    In each column the first, the last, the lowest and the highest point are kept, of both edges.

    Args:
        band: of any length.
        most: columns, about as many as it has pixels to go to.
    """
    if len(band.x) <= 4 * most:
        return band
    span = float(band.x[-1] - band.x[0]) or 1.0
    column = np.minimum(((band.x - band.x[0]) / span * most).astype(int), most - 1)
    starts = np.flatnonzero(np.r_[True, np.diff(column) > 0])
    kept = {0, len(band.x) - 1}
    for start, end in zip(starts, np.r_[starts[1:], len(column)], strict=True):
        low, high = (band.mean + sign * band.std for sign in (-1.0, 1.0))
        kept |= {int(start), int(end) - 1}
        kept |= {int(start + np.argmin(low[start:end])), int(start + np.argmax(high[start:end]))}
    at = np.array(sorted(kept))
    return Band(band.x[at], band.mean[at], band.std[at], band.seeds)


def learning(entries: Sequence[Entry], axis: str) -> Band | None:
    """An arm's metric against what it had spent."""
    return band([(e.curve.steps, e.curve.axis(axis), e.curve.values) for e in shown(entries)])


def quality(entries: Sequence[Entry], name: str) -> Band | None:
    """One measure of an arm's selection against updates."""
    return band([_selection(e, name) for e in shown(entries)])


def _selection(entry: Entry, name: str) -> tuple[Floats, Floats, Floats]:
    points = []
    for record in entry.run.metrics:
        measures = record.get("selection")
        value = measures.get(name) if isinstance(measures, Mapping) else None
        if isinstance(value, (int, float)) and abs(value) < 1e9:  # no NaN either
            points.append((float(record.get("step", 0)), float(value)))
    found = np.array(sorted(dict(points).items()), dtype=np.float64).reshape(-1, 2)
    return found[:, 0], found[:, 0], found[:, 1]
