"""What each command of `sift theory` does: compute, print a table, write a plot."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from sifting.cli.theory_past import noise_many
from sifting.cli.theory_tables import chunks, open_console, progress_bar, table, until, with_error
from sifting.terminal import say
from sifting.theory import (
    DeepLinearNetwork,
    LeastSquares,
    LogisticRegression,
    Pairs,
    argmax_preservation,
    crossover_value,
    estimate,
    p_noise,
    read_pairs,
    rho_gaussian,
    rho_gaussian_lower,
    simulate,
)
from sifting.theory._checks import floats, whole
from sifting.theory.noise import SIGMA_LIMIT
from sifting.theory.pairs import AUDITS
from sifting.theory.plots import (
    check_path,
    plot_estimates,
    plot_exits,
    plot_noise,
    plot_rho,
    plot_simulation,
)
from sifting.theory.problems import SimulatedProblem
from sifting.training.run_folder import RunError, check_run_logs


def gsgd(args: argparse.Namespace) -> None:
    """Simulate, then show measured losses beside the bounds."""
    console = open_console()
    path = check_path(args.output)
    problem: SimulatedProblem
    if args.problem == "logistic":
        problem = LogisticRegression(dim=args.dim, signal=args.signal)
    else:
        problem = LeastSquares(
            dim=args.dim,
            distance=args.distance,
            minority=args.minority,
            shift=args.shift,
            label_noise=args.label_noise,
        )
    floats("step-size", args.step_size, lambda x: (x > 0) & (x < 1), "0 < step-size < 1",
           "it is in units of 1/L, and both theorems need η < 1/L")  # fmt: skip
    with progress_bar("simulating") as progress:
        s = simulate(
            problem,
            K=args.steps,
            R=args.candidates,
            eta=args.step_size / problem.smoothness,
            sigma=args.sigma,
            runs=args.runs,
            seed=args.seed,
            progress=progress,
        )
    c = s.constants
    unit, name = (c.F_star, "F*") if c.F_star > 0 else (1.0, "1")
    both = len(s.arms) == 2  # a third arm leaves no room for the path's bound
    columns = ["K"]
    for arm in s.arms.values():
        columns += [arm.name, "bound"]
        if arm.name != "SGD":
            columns += ["path bound", "ρ"] if both else ["ρ"]
    rows = []
    for i in np.unique(np.linspace(0, s.steps_C.size - 1, 12).round().astype(int)):
        row = [f"{s.steps_C[i]:,.0f}"]
        for arm in s.arms.values():
            row += [with_error(arm.mean_C[i] / unit, arm.error_C[i] / unit)]
            row += [f"{arm.bound_C[i] / unit:,.1f}"]
            if arm.name != "SGD":
                row += [f"{arm.path_bound_C[i] / unit:,.1f}"] if both else []
                row += [f"{arm.ratio_C[i]:.2f}"]
        rows.append(row)
    table(console, f"Loss of the mean iterate in units of {name}, {args.runs} runs", columns, rows)
    console.print(
        f"L = {c.L:g}, η = {s.eta:g}, D0 = {c.D0:g}, F* = {c.F_star:.4g}, "
        f"Δ_{s.R} = {c.Delta:.4g}, ρ*_{s.R} = {c.rho_star:.4g} (all exact)"
    )
    for arm_name, value in s.rho.items():
        Delta = max(c.Delta, value * c.F_star)
        meet = float(crossover_value(s.eta, c.L, value, Delta, c.F_star)) / unit
        at = s.crossover_bound(arm_name)
        console.print(
            f"{arm_name}: its bound leads SGD's {until(at)}"
            + (f", at {meet:.3g} {name}" if 0 < at < np.inf else "")
            + f"; its measured loss leads {until(s.crossover_measured(arm_name))}"
        )
    plot_simulation(s, path)
    say(f"wrote {path}")


def exits(args: argparse.Namespace) -> None:
    """Build a deep linear network and show every layer's β and order preservation."""
    console = open_console()
    path = check_path(args.output)
    network = DeepLinearNetwork.random(
        args.layers, args.width, kind=args.kind, scale=args.scale, seed=args.seed
    )
    betas = network.betas()
    sampled = network.sample_preservation(args.pairs, seed=args.seed + 1)
    columns = ["exit", "β", "p, closed", "p, integral", "p, sampled", "sharper ≥", "paper ≥"]
    by = [
        argmax_preservation(betas, method=m) for m in ("closed", "integral", "lower_sharp", "lower")
    ]
    rows = []
    for j in range(betas.size):
        error = 1.96 * np.sqrt(sampled[j] * (1 - sampled[j]) / args.pairs)
        row = [f"{j + 1}", f"{betas[j]:+.3f}", f"{by[0][j]:.4f}", f"{by[1][j]:.4f}"]
        row += [f"{sampled[j]:.4f} ±{error:.4f}", f"{by[2][j]:.4f}", f"{by[3][j]:.4f}"]
        rows.append(row)
    title = f"{args.layers} {args.kind} layers of width {args.width}"
    table(console, f"P(exit keeps the order of two losses): {title}", columns, rows)
    plot_exits(betas, sampled, args.pairs, path, title=title)
    say(f"wrote {path}")


def rho(args: argparse.Namespace) -> None:
    """ρ_R of Gaussian errors for several R."""
    console = open_console()
    path = check_path(args.output)
    draws = int(whole("draws", args.draws, 2, "sample twice or more"))
    rng = np.random.default_rng(args.seed)
    rows, sampled = [], {}
    for R in sorted(set(args.candidates)):
        exact = rho_gaussian(R, args.eps, args.delta)
        row = [f"{R:,}", f"{exact:.4f}"]
        n = min(draws, 20_000_000 // R)
        if n >= 100:
            largest = np.concatenate(
                [
                    ((args.eps + args.delta * rng.standard_normal((m, R))) ** 2).max(1)
                    for m in chunks(n, max(1, 2_000_000 // R))
                ]
            ) / (args.eps**2 + args.delta**2)
            sampled[R] = (float(largest.mean()), float(largest.std(ddof=1) / np.sqrt(n)))
            row.append(f"{sampled[R][0]:.4f} ±{1.96 * sampled[R][1]:.4f}")
        else:
            row.append("–")
        if R >= 9:
            lower = rho_gaussian_lower(R, args.eps, args.delta)
            row += [f"{lower:.4f}", f"{lower / exact:.0%}"]
        else:
            row += ["R < 4 log R", "–"]
        rows.append(row)
    title = f"ρ_R for errors N({args.eps:g}, {args.delta:g}²)"
    table(console, title, ["R", "exact", "sampled, 95 %", "paper ≥", "of exact"], rows)
    plot_rho(sampled, args.eps, args.delta, path)
    say(f"wrote {path}")


def noise(args: argparse.Namespace) -> None:
    """p(σ) by every proof, beside the ratio measured on two laws of the loss; or for any R."""
    if args.candidates != 2 or args.kept != 1:
        noise_many(args)
        return
    console = open_console()
    path = check_path(args.output)
    draws = int(whole("draws", args.draws, 2, "sample twice or more"))
    sigmas = np.unique(floats("sigma", args.sigma, lambda x: x >= 0, "sigma >= 0", "a spread"))
    rng = np.random.default_rng(args.seed)
    laws = {
        "Gaussian ζ, f = z²": rng.standard_normal((draws, 2)) ** 2,
        "ζ = ±1, worst pair": np.ones((draws, 2)),
    }
    measured: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in laws}
    for sigma in sigmas:
        for name, f in laws.items():
            if "±1" in name:  # the ratio at which such noise does most harm
                f = f * [1, max(0.999 * np.exp(2 * sigma), 1)]
                zeta = np.where(rng.random(f.shape) < 0.5, -1.0, 1.0)
            else:
                zeta = rng.standard_normal(f.shape)
            best = f.max(1)
            picked = np.where((np.log(f) + sigma * zeta) @ [1, -1] > 0, f[:, 0], f[:, 1])
            ratio = picked.mean() / best.mean()
            measured[name][0].append(float(ratio))
            spread = (picked - ratio * best).std(ddof=1) / np.sqrt(draws) / best.mean()
            measured[name][1].append(float(spread))
    rows = []
    for i, sigma in enumerate(sigmas):
        row = [f"{sigma:g}", f"{p_noise(sigma):.4f}" if sigma <= SIGMA_LIMIT else "–"]
        row += [f"{p_noise(sigma, method=m):.4f}" for m in ("cantelli", "symmetric", "gaussian")]
        row += [f"{ratio[i]:.4f} ±{1.96 * error[i]:.4f}" for ratio, error in measured.values()]
        rows.append(row)
    columns = ["σ", "paper ≥", "1 − max h", "symmetric ≥", "Gauss ≥", *measured]
    table(console, "Share of ρ₂ that noise leaves, R = 2", columns, rows)
    plot_noise(sigmas, {k: (np.array(a), np.array(b)) for k, (a, b) in measured.items()}, path)
    say(f"wrote {path}")


def _check_log(path: Path) -> None:
    """Raise where the log of a run is not what the run wrote to it: half of it would be another estimate."""
    folder = path if path.is_dir() else path.parent
    if (folder / "run.json").exists() and (path.is_dir() or path.name == AUDITS):
        try:
            check_run_logs(folder)
        except RunError as error:
            raise ValueError(str(error)) from error


def estimates(args: argparse.Namespace) -> None:
    """Estimate from a run's log, and say what the theory makes of it."""
    console = open_console()
    path = check_path(args.output) if args.output is not None else None
    _check_log(Path(args.path))
    pairs = read_pairs(args.path)
    e = estimate(
        pairs,
        R=args.candidates,
        keep=args.keep,
        confidence=args.confidence,
        resamples=args.resamples,
        seed=args.seed,
    )
    p = e.predict()
    kept = f"top {e.keep:.0%}"
    named = [
        (f"ρ_{e.R}", e.rho, f"largest of {e.R} exact losses / mean"),
        (f"ρ_{e.R},approx", e.rho_approx, f"exact loss of the one of {e.R} that looked largest"),
        (f"ρ, {kept}", e.kept_exact, "kept by exact loss / mean"),
        (f"ρ_approx, {kept}", e.kept, "kept by early loss / mean; random is 1"),
        ("order kept", e.preservation, "two candidates ranked alike; random is 0.5"),
        (f"recall, {kept}", e.recall, f"of the exact {kept}; random is {e.keep:g}"),
        ("σ", e.sigma, "spread of log(early/exact) within a batch"),
        ("μ", e.mu, "mean of log(early/exact)"),
        ("slope", e.slope, "of log early on log exact; the noise model says 1"),
    ]
    rows = [
        [name, f"{i.value:.4f}", f"{i.low:.4f} … {i.high:.4f}", line] for name, i, line in named
    ]
    title = f"{e.pairs:,} pairs in {e.batches:,} batches, {e.confidence:.0%} intervals"
    table(console, title, ["", "estimate", "interval", "meaning"], rows, left=(0, 3), wrap=(3,))
    console.print(f"[bold]{p.verdict}[/bold]")
    console.print(
        f"Break-even cost of scoring: {p.kept_break_even} updates a step for the {kept}, "
        f"{p.break_even} for one of {e.R}.",
        markup=False,
    )
    below = {True: "below", False: "above", None: "not told apart from"}[p.sigma_below]
    console.print(
        f"σ is {below} σ_max = {p.sigma_max:.3f} (paper; by the tighter bound "
        f"{p.sigma_max_symmetric:.3f}). "
        + (
            f"But ρ_2,approx = {e.rho_2_approx} is less than the {p.rho_2_lower:.3f} that i.i.d. "
            "noise would leave: the early losses err in a systematic way."
            if p.noise_refuted
            else f"I.i.d. noise would leave ρ_2,approx ≥ {p.rho_2_lower:.3f}; "
            f"it is {e.rho_2_approx}."
        ),
        markup=False,
    )
    if e.dropped or e.nonpositive:
        console.print(
            f"Left out: {e.dropped} batches with fewer than {e.R} candidates; from σ, μ and slope "
            f"{e.nonpositive} pairs with a loss of 0 or below."
        )
    if path is not None:
        used = [i for i, f in enumerate(pairs.exact) if f.size >= e.R and f.any()]
        each = [
            estimate(Pairs((pairs.early[i],), (pairs.exact[i],)), keep=e.keep, resamples=1)
            for i in used
        ]
        plot_estimates(
            np.array([pairs.steps[i] for i in used], np.float64),
            np.array([one.kept.value for one in each]),
            np.array([one.kept_exact.value for one in each]),
            e,
            path,
        )
        say(f"wrote {path}")
