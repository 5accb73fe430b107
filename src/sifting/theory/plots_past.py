"""The figures of what goes past the paper: kept loss, no convexity, noise for any R."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from sifting.theory._checks import Floats
from sifting.theory.adaptive import RuleComparison
from sifting.theory.many import p_noise_many
from sifting.theory.noisy import rho_noisy
from sifting.theory.plots import BLUE, GREEN, GREY, ORANGE, PINK, new_figure, save

COLOURS = {"SGD": BLUE, "GSGD": ORANGE, "kept": GREEN}
STYLES = ("-", "--", "-.", ":", (0, (6, 1, 1, 1, 1, 1)))
TITLES = {
    "squares": "Least squares, a perfect fit exists",
    "noisy-squares": "Least squares, two rules and label noise",
    "few": "Two rules, and a loss for one sample in ten",
    "logistic": "Logistic regression",
    "phase": "Phase retrieval (not convex)",
}


def plot_kept(results: Mapping[str, RuleComparison], path: str | Path) -> None:
    """Loss above its minimum against the gradients computed, a panel for each problem.

    Args:
        results: of `compare_rules`, by the name of the problem.
        path: a .png or .svg file.
    """
    figure, panels = new_figure(len(results) + 1, columns=3)
    for axes, (name, result) in zip(panels, results.items(), strict=False):
        F_star = result.constants.F_star
        for arm in result.arms.values():
            colour, live = COLOURS[arm.name], np.isfinite(arm.keep_C)  # until losses round to 0
            x = arm.gradients_C[live]
            label = {
                "SGD": f"SGD, {result.b} of {result.B}",
                "GSGD": f"GSGD, top {result.b} of {result.B}",
                "kept": f"kept: all but {result.epsilon:g} of the loss",
            }[arm.name]
            axes.plot(x, arm.mean_C[live] - F_star, color=colour, label=label)
            low, high = (edge[live] - F_star for edge in arm.band())
            axes.fill_between(x, np.maximum(low, 1e-12), high, color=colour, alpha=0.2, lw=0)
            if np.isfinite(arm.bound_C).any():
                axes.plot(x, arm.bound_C[live] - F_star, color=colour, ls="--")
        axes.plot([], [], color=GREY, ls="--", label="bound")
        axes.set(xscale="log", yscale="log", xlabel="gradients computed")
        axes.set_ylabel("loss of the mean iterate" + (" − F*" if F_star > 0 else ""))
        axes.set_title(TITLES.get(name, name), fontsize=10)
        axes.legend(fontsize=7, loc="lower left")
    share = panels[-1]
    for (name, result), style in zip(results.items(), STYLES, strict=False):
        share.plot(result.steps_C, result.arms["kept"].keep_C, ls=style, color=GREEN, label=name)
    share.set(xscale="log", xlabel="steps K", ylabel="share of the candidates", ylim=(0, 1.03))
    share.set_title("What the rule keeps", fontsize=10)
    share.legend(fontsize=7, loc=(0.03, 0.22))
    save(figure, path)


def plot_weak(
    steps: Floats,
    distance_CS: Floats,
    value_CS: Floats,
    least_C: Floats,
    bounds: Mapping[str, Floats],
    path: str | Path,
) -> None:
    """GSGD without convexity: distance, loss and stationarity, each with its bound.

    Args:
        steps: the checkpoints K.
        distance_CS: |w_K - w*|² of every run on the leaky neuron.
        value_CS: F(w_K) there, with the step of the Polyak-Łojasiewicz bound.
        least_C: the least E|∇φ|² so far in phase retrieval.
        bounds: on each, by the names aim, pl and phase.
        path: a .png or .svg file.
    """
    figure, panels = new_figure(3, columns=3)
    parts = (
        ("aim", distance_CS, "|w − w*|²", "Leaky neuron: every gradient aims at w*"),
        ("pl", value_CS, "F(w)", "Leaky neuron: Polyak–Łojasiewicz"),
        ("phase", least_C[:, None], "least E|∇φ|² so far", "Phase retrieval: stationarity"),
    )
    for axes, (key, value, label, title) in zip(panels, parts, strict=True):
        axes.plot(steps, value.mean(1), color=ORANGE, label="GSGD, mean of the runs")
        if value.shape[1] > 1:
            low, high = np.quantile(value, [0.05, 0.95], axis=1)
            axes.fill_between(steps, low, high, color=ORANGE, alpha=0.2, lw=0)
        axes.plot(steps, bounds[key], color=GREY, ls="--", label="bound")
        axes.set(xscale="log", yscale="log", xlabel="steps K", ylabel=label)
        bottom = max(float(np.min(value.mean(1))), 1e-16)  # below, rounding rules
        axes.set_ylim(0.3 * bottom, 3 * float(np.max(bounds[key])) + 1e-12)
        axes.set_title(title, fontsize=9)
        axes.legend(fontsize=7.5)
    save(figure, path)


def plot_noise_many(
    R: int,
    k: int,
    top: float,
    sigma: Floats,
    sampled: Sequence[tuple[float, float]],
    path: str | Path,
) -> None:
    """The share of ρ that noise leaves for the top k of R: bounds, three laws, sampled.

    Args:
        R: candidates.
        k: kept of them.
        top: largest σ to draw.
        sigma: where ρ was sampled.
        sampled: (ρ, its standard error) for squared Gaussian errors at each.
        path: a .png or .svg file.
    """
    figure, (axes,) = new_figure(1)
    grid = np.linspace(0, max(top, 0.5), 60)
    axes.plot(grid, p_noise_many(grid, R, k=k), color=ORANGE, ls="--", label="any noise, at least")
    lower = p_noise_many(grid, R, k=k, method="gaussian_lower")
    axes.plot(grid, lower, color=PINK, ls=":", lw=2, label="Gaussian noise, at least")
    if k == 1:
        worst = p_noise_many(grid, R, method="gaussian")
        axes.plot(grid, worst, color=BLUE, label="Gaussian noise, worst losses: exact")
    for law, label, style in (
        ("gaussian", "f = z²", "-"), ("exponential", "f exponential", "-."),
        ("lognormal", "f lognormal", (0, (6, 2))),
    ):  # fmt: skip
        exact = rho_noisy(R, grid, k=k, law=law)  # type: ignore[arg-type]
        axes.plot(grid, exact / exact[0], color=GREEN, ls=style, lw=1, label=label)
    base = float(rho_noisy(R, 0, k=k))
    mean, error = np.array(sampled).T / base
    axes.errorbar(sigma, mean, 1.96 * error, fmt="o", ms=4, capsize=2, lw=1, color="black",
                  label="f = z², sampled, 95 %")  # fmt: skip
    axes.axhline(1 / base, color=GREY, lw=0.8, ls=":")
    axes.annotate(
        "no gain left (f = z²)", (0.45 * grid[-1], 1 / base), fontsize=8, color=GREY, va="top"
    )
    axes.set(xlabel="σ: noise of the log-loss", ylabel="ρ_approx / ρ", ylim=(0, 1.03))
    axes.set_title(f"What noise leaves of the gain, top {k} of {R}", fontsize=10)
    axes.legend(fontsize=7.5, loc="lower left")
    save(figure, path)
