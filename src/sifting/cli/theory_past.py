"""The commands of `sift theory` that go past the paper: kept, weakly-convex, and noise of any R."""

from __future__ import annotations

import argparse

import numpy as np

from sifting.cli.theory_tables import open_console, progress_bar, table, with_error
from sifting.terminal import say
from sifting.theory import (
    LeastSquares,
    LogisticRegression,
    Neuron,
    compare_rules,
    kept_loss_floor,
    kept_loss_speedup,
    kept_share,
    kept_smoothness,
    p_noise_many,
    pl_bound,
    pl_step_size,
    quasar_distance_bound,
    rho_noisy,
    sample_rho_noisy,
    sigma_max,
    weakly_convex_bound,
)
from sifting.theory._checks import Floats, candidates, floats, whole
from sifting.theory.adaptive import RuleComparison
from sifting.theory.plots import check_path
from sifting.theory.plots_past import plot_kept, plot_noise_many, plot_weak
from sifting.theory.problems import SimulatedProblem

KEPT_PROBLEMS = ("squares", "noisy-squares", "few", "logistic", "phase")


def kept(args: argparse.Namespace) -> None:
    """SGD, GSGD and the kept-loss rule on five problems, measured against their bounds."""
    console = open_console()
    path = check_path(args.output)
    floats("step-size", args.step_size, lambda x: (x > 0) & (x < 1), "0 < step-size < 1",
           "it is in units of the longest step that is proved")  # fmt: skip
    names = KEPT_PROBLEMS if args.problem == "all" else (args.problem,)
    results: dict[str, RuleComparison] = {}
    for name in names:
        problem = _problem(name, args.dim)
        steps = _steps(problem, args.candidates, args.batch, args.epsilon, args.step_size)
        with progress_bar(name) as progress:
            results[name] = compare_rules(
                problem,
                K=args.steps,
                B=args.candidates,
                b=args.batch,
                epsilon=args.epsilon,
                per_loss=args.per_loss,
                decay=args.decay,
                eta=steps,
                runs=args.runs,
                seed=args.seed,
                progress=progress,
            )
    columns = ["problem, rule", "η", "gradients", "kept, first", "last", "loss", "bound"]
    rows = []
    for name, result in results.items():
        rows.append([name, "", "", "", "", f"F* = {result.constants.F_star:.4g}", ""])
        for arm in result.arms.values():
            row = [f"  {arm.name}", f"{arm.eta:.3g}"]
            kept_C = arm.keep_C[np.isfinite(arm.keep_C)]  # while there was a loss to learn from
            row += [f"{arm.gradients_C[-1]:,.0f}"]
            row += [f"{kept_C[i]:.0%}" if kept_C.size else "–" for i in (0, -1)]
            row += [with_error(arm.mean_C[-1], arm.error_C[-1])]
            rows.append([*row, f"{arm.bound_C[-1]:.4g}" if np.isfinite(arm.bound_C[-1]) else "–"])
    table(console, f"Loss of the mean iterate after {args.steps:,} steps of {args.candidates} "
          f"candidates, {args.runs} runs", columns, rows, left=(0,))  # fmt: skip
    for name, result in results.items():
        lines = []
        for by in ("gradients", "steps"):
            ahead = result.ahead(by)
            later = "".join(f", {arm} from {at:,.0f} on" for at, arm in ahead[1:])
            lines.append(f"at equal {by} {ahead[0][1] if ahead else 'none'}{later}")
        console.print(f"{name}: ahead {'; '.join(lines)}")
    L, L_F = float(args.dim), 1.0
    R, b = args.candidates / args.batch, args.batch
    gain = kept_loss_speedup(R, L / L_F, b, epsilon=args.epsilon)
    console.print(
        f"Fewer steps than SGD, by the bounds, if {b} of {args.candidates} carry all but ε = "
        f"{args.epsilon:g} of the loss and N = {L / L_F:g}: {gain:.2f} times, at ε = 0 "
        f"{kept_loss_speedup(R, L / L_F, b):.2f}. Floor: F*·{kept_loss_floor(1, args.epsilon):.4g}."
    )
    known = ", ".join(
        f"{law} {_keep_for(args.epsilon, law):.0%}" for law in ("exponential", "gaussian")
    )
    console.print(f"Kept at this ε of many candidates with losses of a known law: {known}.")
    plot_kept(results, path)
    say(f"wrote {path}")


def weakly_convex(args: argparse.Namespace) -> None:
    """GSGD without convexity: a linear rate on a leaky neuron, stationarity in phase retrieval."""
    console = open_console()
    path = check_path(args.output)
    R = int(candidates("R", args.candidates))
    leaky = Neuron(dim=args.dim, link="leaky", slope=args.slope, seed=args.seed)
    phase = Neuron(dim=args.dim, link="phase", seed=args.seed)
    K = int(whole("K", args.steps, 1, "run one step or more"))
    steps = np.unique(np.round(np.geomspace(1, K, 16)))
    L, m = leaky.smoothness, leaky.pl_constant()
    eta = {"aim": leaky.aim / (2 * L), "pl": float(pl_step_size(L, m))}
    eta["phase"] = float(1 / (phase.smoothness * np.sqrt(3 * K)))
    runs: dict[str, Floats] = {}
    for name, problem in (("aim", leaky), ("pl", leaky), ("phase", phase)):
        with progress_bar(name) as progress:
            result = compare_rules(problem, K=K, B=R, b=1, eta=eta[name], sigma=args.sigma,
                                   runs=args.runs, checkpoints=steps, seed=args.seed,
                                   progress=progress)  # fmt: skip
        runs[name] = result.arms["GSGD"].last_CSD
    distance = leaky.distance_to(runs["aim"]) ** 2
    value = leaky.objective(runs["pl"])
    start = leaky.constants(R).D0
    # the mean of |∇φ|² over the runs at w_0 and at each checkpoint; the least so far is bounded
    slopes = [phase.envelope(R, phase.start)[1] ** 2]
    slopes += [float(np.mean([phase.envelope(R, w)[1] ** 2 for w in some]))
               for some in runs["phase"]]  # fmt: skip
    least = np.minimum.accumulate(slopes)[:-1]  # of the iterates before each checkpoint
    share = 1.0 if args.sigma == 0 else float(p_noise_many(args.sigma, R, method="gaussian"))
    bounds = {
        "aim": np.asarray(
            quasar_distance_bound(steps, eta["aim"], L, start, 1.0, leaky.growth, c=leaky.aim)
        ),
        "pl": np.asarray(
            pl_bound(steps, eta["pl"], L, m, leaky.envelope(R, leaky.start)[0], share=share)
        ),
        "phase": np.asarray(
            weakly_convex_bound(steps, eta["phase"], phase.smoothness,
                                phase.envelope(R, phase.start)[0], share=share)
        ),
    }  # fmt: skip
    columns = ["K", "E|w − w*|²", "≤", "E F(w_K)", "≤ by PL", "least E|∇φ|²", "≤"]
    rows = []
    for i, k in enumerate(steps):
        pairs = ((distance[i].mean(), "aim"), (value[i].mean(), "pl"), (least[i], "phase"))
        rows.append([f"{k:,.0f}"])
        for measured, name in pairs:
            rows[-1] += [_small(measured), _small(bounds[name][i])]
    table(console, f"GSGD without convexity: leaky neuron, phase retrieval; R = {R}, "
          f"{args.runs} runs", columns, rows)  # fmt: skip
    console.print(
        f"leaky: L = {L:.3g}, c = {leaky.aim:.3g}, growth {leaky.growth:.3g}, PL {m:.3g}, η = "
        f"{eta['aim']:.3g} and {eta['pl']:.3g}; phase: L = {phase.smoothness:.3g}, η = "
        f"{eta['phase']:.3g}, F(w_K) = {phase.objective(runs['phase'][-1]).mean():.3g}"
    )
    plot_weak(steps, distance, value, least, bounds, path)
    say(f"wrote {path}")


def noise_many(args: argparse.Namespace) -> None:
    """What noise leaves of ρ for the top k of R: bounds, exact for three laws, and sampled."""
    console = open_console()
    path = check_path(args.output)
    draws = int(whole("draws", args.draws, 2, "sample twice or more"))
    sigmas = np.unique(floats("sigma", args.sigma, lambda x: x >= 0, "sigma >= 0", "a spread"))
    R, k = args.candidates, args.kept
    laws = {"gaussian": "f = z²", "exponential": "f ~ Exp", "lognormal": "f ~ LogN"}
    curves: dict[str, Floats] = {"any noise ≥": np.asarray(p_noise_many(sigmas, R, k=k))}
    curves["Gauss ≥"] = np.asarray(p_noise_many(sigmas, R, k=k, method="gaussian_lower"))
    if k == 1:
        curves["Gauss, worst"] = np.asarray(p_noise_many(sigmas, R, method="gaussian"))
    for law, label in laws.items():
        exact = rho_noisy(R, np.append(sigmas, 0.0), k=k, law=law)  # type: ignore[arg-type]
        curves[label] = exact[:-1] / exact[-1]
    top = float(rho_noisy(R, 0, k=k))
    sampled = [
        sample_rho_noisy(R, float(s), k=k, draws=max(100, draws // R), seed=args.seed + i)
        for i, s in enumerate(sigmas)
    ]
    rows = []
    for i, s in enumerate(sigmas):
        row = [f"{s:g}", *(f"{curve[i]:.4f}" for curve in curves.values())]
        rows.append([*row, f"{sampled[i][0] / top:.4f} ±{1.96 * sampled[i][1] / top:.4f}"])
    title = f"Share of ρ that noise leaves, top {k} of {R}"
    table(console, title, ["σ", *curves, "f = z², sampled"], rows)
    limits = f"{sigma_max(top, R=R, k=k):.3f} for any noise" + (
        f", {sigma_max(top, R=R, method='gaussian'):.3f} for Gaussian" if k == 1 else ""
    )
    console.print(f"f = z²: ρ = {top:.4f} without noise; a gain is proved below σ_max = {limits}")
    plot_noise_many(R, k, float(sigmas.max()), sigmas, sampled, path)
    say(f"wrote {path}")


def _small(value: float) -> str:
    return f"{value:.3g}" if value >= 1e-20 else "< 1e-20"  # where rounding rules


def _problem(name: str, dim: int) -> SimulatedProblem:
    if name == "squares":
        return LeastSquares(dim=dim, minority=0, shift=0)
    if name == "noisy-squares":
        return LeastSquares(dim=dim, label_noise=1.0)
    if name == "few":
        return LeastSquares(dim=dim, active=0.1)
    if name == "logistic":
        return LogisticRegression(dim=dim)
    return Neuron(dim=dim, link="phase", distance=1.2)


def _steps(
    problem: SimulatedProblem, B: int, b: int, epsilon: float, fraction: float
) -> dict[str, float]:
    """The share of the longest step that each arm's bound allows; of 1/L without convexity."""
    B = int(candidates("B", B))
    b = int(whole("b", b, 1, "train on one or more"))
    c = problem.constants(B)
    if not c.convex:
        return dict.fromkeys(("SGD", "GSGD", "kept"), fraction / c.L)
    longest = {
        "SGD": max(1 / c.L, 1 / float(kept_smoothness(c.L, 0, B=b, L_F=c.L_F))),
        "GSGD": 1 / c.L,
        "kept": max(1 / c.L, (1 - epsilon) / float(kept_smoothness(c.L, epsilon, B=B, L_F=c.L_F))),
    }
    return {name: fraction * value for name, value in longest.items()}


def _keep_for(epsilon: float, law: str) -> float:
    """The share to keep so that all but ε of the loss is kept, for many candidates of a law."""
    keep = np.linspace(0, 1, 100_001)
    return float(keep[np.argmax(kept_share(keep, law=law) >= 1 - epsilon)])  # type: ignore[arg-type]
