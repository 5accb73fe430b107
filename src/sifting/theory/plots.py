"""The figures of `sift theory`, as PNG or SVG files. Nothing here computes; matplotlib draws."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sifting import files
from sifting.theory._checks import Floats
from sifting.theory.estimation import Estimates
from sifting.theory.gaussian import rho_gaussian, rho_gaussian_lower
from sifting.theory.linear import argmax_preservation
from sifting.theory.noise import SIGMA_LIMIT, p_noise
from sifting.theory.simulation import Simulation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")

# Okabe and Ito's colours, which colour-blind readers tell apart
BLUE, ORANGE, GREEN, PINK, GREY = "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#666666"
ARM_COLOURS = {"SGD": BLUE, "GSGD": ORANGE, "GSGD, noisy": GREEN}


def check_path(path: str | Path) -> Path:
    """`path`, if a figure can be written there; asked before hours of work, not after.

    >>> check_path("figure.gif")
    Traceback (most recent call last):
        ...
    ValueError: figure.gif ends in .gif, but must end in .png or .svg
    """
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise ValueError(f"{path} ends in {path.suffix or 'nothing'}, but must end in .png or .svg")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{path} is in a folder that does not exist: make it first")
    return path


def save(figure: Figure, path: str | Path) -> None:
    """Write the figure to a file beside `path`, then put it in place: never half a figure."""
    import matplotlib

    path = check_path(path)
    drawn = io.BytesIO()
    # the same figure gives the same bytes
    with matplotlib.rc_context({"svg.hashsalt": "sifting", "svg.fonttype": "none"}):
        metadata: dict[str, Any] = {"Date": None} if path.suffix.lower() == ".svg" else {}
        figure.savefig(drawn, format=path.suffix[1:].lower(), dpi=160, metadata=metadata)
    files.write_bytes(path, drawn.getvalue())


def plot_simulation(simulation: Simulation, path: str | Path) -> None:
    """Loss above the minimum against steps: measured band, bound, and ρ along the path.

    Args:
        simulation: of `simulate`.
        path: a .png or .svg file.
    """
    figure, (loss, ratio) = new_figure(2, width_ratios=[3, 2])
    c = simulation.constants
    unit = c.F_star if c.F_star > 0 else 1.0
    K = simulation.steps_C
    for name, arm in simulation.arms.items():
        colour = ARM_COLOURS[name]
        low, high = arm.band()
        band_low, band_high = ((x - c.F_star) / unit for x in (low, high))
        loss.fill_between(K, band_low, band_high, color=colour, alpha=0.2, lw=0)
        hidden = name == "GSGD" and len(simulation.arms) > 2  # beneath the noisy arm
        loss.plot(
            K, (arm.mean_C - c.F_star) / unit, color=colour, label=name, lw=2.6 if hidden else 1.5
        )
        loss.plot(K, (arm.bound_C - c.F_star) / unit, color=colour, ls="--")
        if name != "SGD":
            loss.plot(K, (arm.path_bound_C - c.F_star) / unit, color=colour, ls=":")
            ratio.plot(K, arm.ratio_C, color=colour, label=f"{name}, along the path")
            ratio.axhline(
                simulation.rho[name], color=colour, ls="--", label=f"{name}, in its bound"
            )
    loss.plot([], [], color=GREY, label="measured: mean, 5–95 % of runs")
    loss.plot([], [], color=GREY, ls="--", label="bound")
    loss.plot([], [], color=GREY, ls=":", label="bound with ρ along the path")
    marks = [
        (simulation.crossover_measured(), "-", 0.99, "SGD overtakes"),
        (simulation.crossover_bound(), "--", 0.88, "bounds cross"),
    ]
    for crossing, style, height, text in marks:
        if 0 < crossing <= K[-1]:
            loss.axvline(crossing, color=GREY, lw=0.8, ls=style)
            left = crossing > np.sqrt(K[-1])  # the side with more room
            loss.annotate(
                f"{text}{'  ' if left else ''}\nat K ≈ {crossing:,.0f}{'  ' if left else ''}",
                (crossing, height),
                xycoords=("data", "axes fraction"),
                fontsize=8,
                va="top",
                ha="right" if left else "left",
                color=GREY,
                bbox={"fc": "white", "ec": "none", "pad": 1, "alpha": 0.9},
            )
    name = "(loss − F*) / F*" if c.F_star > 0 else "loss"
    loss.set(xscale="log", yscale="log", xlabel="steps K", ylabel=f"{name} of the mean iterate")
    loss.set_title(f"Loss above its minimum, {arm.loss_SC.shape[0]} runs", fontsize=10)
    loss.legend(fontsize=7.5, loc="lower left")
    ratio.axhline(1, color=GREY, lw=0.8)
    ratio.set(xscale="log", xlabel="steps K", ylabel="ρ: loss of the picked / of the candidates")
    ratio.set_title(f"What selection gains, R = {simulation.R}", fontsize=10)
    ratio.legend(fontsize=7.5)
    save(figure, path)


def plot_exits(
    betas_k: Floats, sampled_k: Floats, pairs: int, path: str | Path, *, title: str = ""
) -> None:
    """How often an exit keeps the order: against β with the bounds, and layer by layer.

    Args:
        betas_k: of the layers of a network.
        sampled_k: how often each kept the order of a sampled pair.
        pairs: how many were sampled.
        path: a .png or .svg file.
        title: what the network is.
    """
    from matplotlib.ticker import MaxNLocator

    figure, (curve, layers) = new_figure(2)
    beta = np.sin(np.linspace(-np.pi / 2, np.pi / 2, 401))
    curve.plot(beta, argmax_preservation(beta), color=BLUE, label="exact: 1/2 + arcsin(β)/π")
    half = beta[beta >= 0]
    sharp, lower = (argmax_preservation(half, method=m) for m in ("lower_sharp", "lower"))
    curve.plot(half, sharp, color=GREEN, ls="-.", label="1 − √(1−β²)/2")
    curve.plot(half, lower, color=ORANGE, ls="--", label="paper: 1 − √((2−2β²)/(2−β²))")
    error_k = 1.96 * np.sqrt(np.maximum(sampled_k * (1 - sampled_k), 0.25 / pairs) / pairs)
    dots: dict[str, Any] = {"fmt": "o", "ms": 4, "color": "black", "capsize": 2, "lw": 1}
    curve.errorbar(betas_k, sampled_k, error_k, **dots, label="sampled, 95 %")
    curve.set(xlabel="β: cosine of early and last reading", ylabel="P(order of two losses kept)")
    curve.set(xlim=(-1.03, 1.03), ylim=(-0.03, 1.05))
    curve.legend(fontsize=7.5, loc="upper left")
    j = np.arange(1, betas_k.size + 1)
    layers.plot(j, argmax_preservation(betas_k), color=BLUE, label="exact")
    for method, colour, style in (("lower_sharp", GREEN, "-."), ("lower", ORANGE, "--")):
        name = "sharper bound" if method == "lower_sharp" else "paper's bound"
        p = argmax_preservation(betas_k, method=method)  # type: ignore[arg-type]
        layers.plot(j, p, color=colour, ls=style, label=name)
    layers.errorbar(j, sampled_k, error_k, **dots, label="sampled, 95 %")
    layers.axhline(0.5, color=GREY, lw=0.8, ls=":")
    layers.annotate("a coin", (j[0], 0.49), fontsize=8, color=GREY, va="top", ha="left")
    layers.set(xlabel="exit after layer", ylabel="P(order of two losses kept)", ylim=(-0.03, 1.05))
    layers.xaxis.set_major_locator(MaxNLocator(integer=True))
    layers.set_title(title, fontsize=10)
    layers.legend(fontsize=7.5, loc="upper left")
    save(figure, path)


def plot_rho(
    sampled: Mapping[int, tuple[float, float]], eps: float, delta: float, path: str | Path
) -> None:
    """ρ_R of Gaussian errors against R: exact, the paper's bound, and sampled values.

    Args:
        sampled: R -> (mean, standard error).
        eps: mean of the errors.
        delta: their standard deviation.
        path: a .png or .svg file.
    """
    figure, (axes,) = new_figure(1)
    R = np.unique(np.round(np.geomspace(2, max(*sampled, 64), 80)))
    axes.plot(R, rho_gaussian(R, eps, delta), color=BLUE, label="exact, by quadrature")
    defined = R[R >= 9]
    axes.plot(
        defined,
        rho_gaussian_lower(defined, eps, delta),
        color=ORANGE,
        ls="--",
        label="paper's lower bound (R ≥ 9)",
    )
    at = np.array(list(sampled))
    mean, error = np.array(list(sampled.values())).T
    axes.errorbar(
        at, mean, 1.96 * error, fmt="o", ms=4, capsize=2, lw=1, color="black", label="sampled, 95 %"
    )
    axes.axhline(1, color=GREY, lw=0.8, ls=":")
    axes.annotate("no speed-up", (R[-1], 1), fontsize=8, color=GREY, va="bottom", ha="right")
    axes.set(xlabel="candidates R", ylabel="ρ_R: largest loss / mean loss")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda x, _: f"{x:g}")
    axes.set_title(f"Squared errors of N(ε = {eps:g}, δ² = {delta:g}²)", fontsize=10)
    axes.legend(fontsize=8)
    save(figure, path)


def plot_noise(
    sigma: Floats, measured: Mapping[str, tuple[Floats, Floats]], path: str | Path
) -> None:
    """The share of ρ_2 that noisy losses leave, against σ: bounds and measurements.

    Args:
        sigma: noise levels that were measured.
        measured: name -> (ratio, standard error) at each of them.
        path: a .png or .svg file.
    """
    figure, (axes,) = new_figure(1)
    grid = np.linspace(0, max(float(sigma.max()), 1.0), 300)
    axes.plot(grid, p_noise(grid, method="gaussian"), color=BLUE, label="worst case, Gaussian ζ")
    axes.plot(
        grid, p_noise(grid, method="symmetric"), color=GREEN, ls="-.", label="(1 + exp(−√2 σ))/2"
    )
    axes.plot(
        grid, p_noise(grid, method="cantelli"), color=PINK, ls=":", label="1 − max h(t; σ)", lw=2
    )
    proved = np.linspace(0, SIGMA_LIMIT, 60)
    axes.plot(proved, p_noise(proved), color=ORANGE, ls="--", label="paper: 0.72, to σ = 1/(2√2)")
    for (name, (ratio, error)), marker in zip(measured.items(), "os^D", strict=False):
        axes.errorbar(
            sigma, ratio, 1.96 * error, fmt=marker, ms=4, capsize=2, lw=1, label=name,
            color="black", mfc="white",
        )  # fmt: skip
    axes.set(xlabel="σ: noise of the log-loss", ylabel="ρ₂,approx / ρ₂", ylim=(0.4, 1.02))
    axes.set_title("What noise in the losses leaves of the gain (R = 2)", fontsize=10)
    axes.legend(fontsize=7.5)
    save(figure, path)


def plot_estimates(
    steps: Floats, kept: Floats, kept_exact: Floats, estimates: Estimates, path: str | Path
) -> None:
    """The gain of selection over a run: of the early losses, and what exact ones would give.

    Args:
        steps: of the audited batches.
        kept: mean exact loss of the kept over that of the candidates, of each batch.
        kept_exact: the same, had the exact losses selected.
        estimates: over the whole run.
        path: a .png or .svg file.
    """
    figure, (axes,) = new_figure(1)
    for series, whole_run, colour, name in (
        (kept_exact, estimates.kept_exact, GREY, "exact losses select"),
        (kept, estimates.kept, ORANGE, "early losses select"),
    ):
        axes.plot(steps, series, ".", ms=4, color=colour, alpha=0.6)
        axes.plot([], [], ".-", color=colour, label=f"{name}: {whole_run}")
        axes.axhspan(whole_run.low, whole_run.high, color=colour, alpha=0.2, lw=0)
        axes.axhline(whole_run.value, color=colour)
    axes.axhline(1, color=BLUE, ls="--", label="random selection")
    axes.set(xlabel="step", ylabel="loss of the kept / of the candidates")
    axes.set_title(f"Audited batches, top {estimates.keep:.0%} kept", fontsize=10)
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.3 * (high - low), high)  # room for the legend below the points
    axes.legend(fontsize=8, loc="lower left")
    save(figure, path)


def new_figure(
    panels: int, *, width_ratios: list[float] | None = None, columns: int | None = None
) -> tuple[Figure, tuple[Axes, ...]]:
    """A figure of so many panels, in one row or in rows of `columns`."""
    from matplotlib.figure import Figure

    columns = min(panels, columns or panels)
    rows = -(-panels // columns)
    width = 6.4 if columns == 1 else 10 if columns == 2 else 12
    figure = Figure(figsize=(width, 4.2 if rows == 1 else 3.7 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, width_ratios=width_ratios)
    for axes in grid.ravel():
        axes.grid(True, alpha=0.25, lw=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    for spare in grid.ravel()[panels:]:
        spare.set_visible(False)
    return figure, tuple(grid.ravel()[:panels])
