"""The figures of a report. Matplotlib draws; what is drawn comes from `tables`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from sifting.report import tables
from sifting.report.palette import CLOCKS, PLAIN, THEMED, Palette, style
from sifting.report.reading import Experiment
from sifting.report.sanitize import clip
from sifting.report.svg import inline, saved, settings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WIDTH, HEIGHT = 5.5, 3.8  # inches; small, so that letters stay legible on a phone

EARLY = 0.1  # the first steep part of a curve is below the frame: what differs is above


@dataclass(frozen=True)
class Drawing:
    """A figure and what stands beside it.

    Attributes:
        key: short name, for files and anchors.
        title: heading.
        about: what it shows, for those who do not see it too.
        table: its data.
        draw: draws it in a palette; with a legend where it stands alone.
        legend: "arms" or "clocks".
    """

    key: str
    title: str
    about: str
    table: tables.Table
    draw: Callable[[Palette, bool], Figure]
    legend: str = "arms"

    def svg(self, prefix: str) -> str:
        """The figure as an element of a page, in the page's own colours and font.

        Args:
            prefix: a word that no other figure of the page has.
        """
        with settings():
            source = saved(self.draw(THEMED, False), "svg").decode("utf-8")
        return inline(source, prefix=prefix, title=self.title, about=self.about)

    def file(self, kind: str) -> bytes:
        """The figure as the content of a file of its own, with a legend.

        Args:
            kind: "png" or "svg".
        """
        with settings():
            return saved(self.draw(PLAIN, True), kind)


def drawings(experiment: Experiment) -> Iterator[Drawing]:
    """All figures of an experiment for which its runs have data.

    Args:
        experiment: of `collect`.
    """
    verdict = experiment.verdict
    merit = clip(verdict.metric, 40)
    if any(len(entry.curve) for entry in experiment.entries):
        time = "reference time" if verdict.axis == "reference" else "training time"
        yield Drawing(
            "time",
            f"{_capital(merit)} against {time}",
            f"Mean {merit} of each arm against {time}; the band is one standard deviation over seeds."
            + _target_words(experiment),
            tables.learning_table(experiment, verdict.axis),
            lambda palette, legend: _learning(experiment, verdict.axis, palette, legend),
        )
        yield Drawing(
            "samples",
            f"{_capital(merit)} against samples back-propagated",
            f"Mean {merit} of each arm against the number of samples that went through a backward pass; the "
            "band is one standard deviation over seeds." + _target_words(experiment),
            tables.learning_table(experiment, "samples"),
            lambda palette, legend: _learning(experiment, "samples", palette, legend),
        )
    yield Drawing(
        "clocks",
        "Where the time goes",
        "Seconds of a run by what they were spent on, one bar for each arm, means over seeds"
        + (", reference time." if verdict.axis == "reference" else "."),
        tables.clock_table(experiment),
        lambda palette, legend: _clocks(experiment, palette, legend),
        legend="clocks",
    )
    quality = tables.quality_table(experiment)
    if quality.rows:
        yield Drawing(
            "recall",
            "Recall of the hardest candidates",
            "Share of the candidates with the highest exact loss that were kept. The dashed line is what "
            "choosing at random gives.",
            quality,
            lambda palette, legend: _quality(experiment, "recall", palette, legend),
        )
        yield Drawing(
            "rho",
            "ρ_approx: loss of the kept over that of the candidates",
            "From audits with exact losses. The dashed line at 1 is break-even: below it, the choice is "
            "worse than random.",
            quality,
            lambda palette, legend: _quality(experiment, "rho_approx", palette, legend),
        )


def _target_words(experiment: Experiment) -> str:
    return "" if experiment.verdict.target is None else " The dashed line is the target."


def _capital(name: str) -> str:
    return name[:1].upper() + name[1:]


def _axes(palette: Palette) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    figure.patch.set_facecolor("none" if palette is THEMED else palette.paper)
    axes = figure.add_subplot()
    axes.set_facecolor("none")
    for side in ("left", "bottom"):
        axes.spines[side].set_color(palette.muted)
    axes.tick_params(colors=palette.muted, labelcolor=palette.muted)
    axes.xaxis.label.set_color(palette.ink)
    axes.yaxis.label.set_color(palette.ink)
    axes.grid(True, axis="y", color=palette.rule, linewidth=0.8)
    axes.set_axisbelow(True)
    return figure, axes


def _plot(axes: Axes, index: int, band: tables.Band, palette: Palette, scale: float) -> None:
    colour = palette.of(index)
    x, mean, std = band.x, scale * band.mean, scale * band.std
    if band.seeds > 1:
        axes.fill_between(x, mean - std, mean + std, color=colour, alpha=0.16, linewidth=0)
    axes.plot(
        x,
        mean,
        color=colour,
        linestyle=style(index)[0],
        linewidth=1.9,
        marker=style(index)[1],
        markersize=5,
        markevery=max(1, len(x) // 6) if len(x) > 1 else None,
    )


def _learning(experiment: Experiment, axis: str, palette: Palette, legend: bool) -> Figure:
    figure, axes = _axes(palette)
    verdict = experiment.verdict
    scale = 100.0 if verdict.percent else 1.0
    early = []
    for index, entries in enumerate(experiment.arms.values()):
        band = tables.learning(entries, axis)
        if band is not None:
            _plot(axes, index, band, palette, scale)
            early.append(scale * float(np.interp(EARLY * band.x[-1], band.x, band.mean)))
    if verdict.lower_is_better:
        axes.set_ylim(top=min(axes.get_ylim()[1], max(early, default=0.0)))
    else:
        axes.set_ylim(bottom=max(axes.get_ylim()[0], min(early, default=0.0)))
    if verdict.target is not None:
        _line(axes, scale * verdict.target, palette)
    axes.set_xlim(left=0)
    if axis == "samples":
        axes.set_xlabel("samples back-propagated")
        axes.xaxis.set_major_formatter(lambda value, _: _thousands(value))
    else:
        axes.set_xlabel("reference seconds" if axis == "reference" else "seconds of training")
    axes.set_ylabel(clip(f"{verdict.metric} (%)" if verdict.percent else verdict.metric, 40))
    return _finish(figure, experiment, palette, legend)


def _thousands(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:g}{unit}"
    return f"{value:g}"


def _line(axes: Axes, height: float, palette: Palette) -> None:
    axes.axhline(height, color=palette.muted, linewidth=1.1, linestyle=(0, (4, 3)), zorder=1)


def _quality(experiment: Experiment, name: str, palette: Palette, legend: bool) -> Figure:
    figure, axes = _axes(palette)
    for index, entries in enumerate(experiment.arms.values()):
        band = tables.quality(entries, name)
        if band is not None:
            _plot(axes, index, band, palette, 1.0)
    if name == "recall":
        for keep in sorted(_keeps(experiment)):
            _line(axes, keep, palette)
        axes.set_ylim(0, 1.02)
        axes.set_ylabel("recall of the hardest")
    else:
        _line(axes, 1.0, palette)
        low, high = axes.get_ylim()
        axes.set_ylim(min(low, 0.9), max(high, 1.1))
        axes.set_ylabel("ρ_approx")
    axes.set_xlim(left=0)
    axes.set_xlabel("updates")
    axes.xaxis.set_major_formatter(lambda value, _: _thousands(value))
    return _finish(figure, experiment, palette, legend)


def _keeps(experiment: Experiment) -> set[float]:
    """What random choice recalls: the share that is kept."""
    found = set()
    for entry in experiment.entries:
        selector = entry.run.config.get("selector")
        keep = selector.get("keep") if isinstance(selector, Mapping) else None
        if isinstance(keep, (int, float)) and 0 < keep < 1:
            found.add(float(keep))
    return found or {0.5}


def _clocks(experiment: Experiment, palette: Palette, legend: bool) -> Figure:
    figure, axes = _axes(palette)
    arms = experiment.arms
    figure.set_figheight(max(2.2, 0.9 + 0.62 * len(arms)))
    spent = {arm: tables.clocks(entries, experiment.verdict.axis) for arm, entries in arms.items()}
    longest = max((sum(clocks.values()) for clocks in spent.values()), default=0.0) or 1.0
    for row, (arm, clocks) in enumerate(spent.items()):
        left = 0.0
        for index, clock in enumerate(CLOCKS):
            width = clocks[clock]
            axes.barh(
                row,
                width,
                left=left,
                height=0.44,
                color=palette.clocks[index],
                edgecolor=palette.paper,
                linewidth=0.8,
                hatch="////" if clock == "evaluation" else None,
            )
            left += width
        axes.text(0, row - 0.29, clip(arm, 48), color=palette.ink, va="bottom", fontsize=10)
        total = f"{tables.number(left, 3)} s"
        axes.text(left + longest * 0.012, row, total, color=palette.muted, va="center", fontsize=9)
    axes.set_ylim(len(spent) - 0.6, -0.72)
    axes.set_xlim(0, 1.14 * longest)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.grid(False, axis="y")
    axes.grid(True, axis="x", color=palette.rule, linewidth=0.8)
    axes.set_xlabel("seconds")
    if legend:
        handles = [Patch(facecolor=c, label=n) for c, n in zip(palette.clocks, CLOCKS, strict=True)]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False)
        figure.set_figheight(figure.get_figheight() + 0.6)
    return figure


def _finish(figure: Figure, experiment: Experiment, palette: Palette, legend: bool) -> Figure:
    if legend:
        handles = [
            Line2D(
                [],
                [],
                color=palette.of(i),
                linestyle=style(i)[0],
                marker=style(i)[1],
                label=clip(arm, 48),
            )
            for i, arm in enumerate(experiment.arms)
        ]
        names = [clip(arm, 48) for arm in experiment.arms]
        figure.legend(handles, names, loc="outside lower center", ncols=2, frameon=False)
        figure.set_figheight(HEIGHT + 0.26 * ((len(handles) + 1) // 2))
    return figure
