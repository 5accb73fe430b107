"""`sift theory`: the theory against measurement, as a table in the terminal and a plot file."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

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
from sifting.theory.plots import (
    check_path,
    plot_estimates,
    plot_exits,
    plot_noise,
    plot_rho,
    plot_simulation,
)
from sifting.theory.problems import Problem

if TYPE_CHECKING:
    from rich.console import Console


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sift theory COMMAND …`; 0 if it went well, 2 if the request was wrong."""
    args = build_parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = _show_warning
            args.run(args)
    except (ValueError, TypeError, OSError) as error:
        print(f"sift theory {args.command}: {error}", file=sys.stderr)
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("sifting"):
            raise
        print(
            f"sift theory {args.command} needs {error.name}, which is not installed: "
            "pip install 'sifting[theory]'",
            file=sys.stderr,
        )
        return 2
    except KeyboardInterrupt:
        print(f"sift theory {args.command}: stopped; nothing was written", file=sys.stderr)
        return 130
    return 0


def build_parser() -> argparse.ArgumentParser:
    """The parser of `sift theory`."""
    parser = argparse.ArgumentParser(
        prog="sift theory", description="The theory against measurement: a table and a plot each."
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], line: str) -> Any:
        sub = commands.add_parser(
            name,
            help=line,
            description=line,
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        sub.set_defaults(run=run)
        default = None if name == "estimate" else f"theory-{name}.png"
        sub.add_argument("-o", "--output", default=default, help="plot file, .png or .svg")
        sub.add_argument("--seed", type=int, default=0, help="of every random draw")
        return sub

    g = command("gsgd", gsgd, "greedy SGD against SGD: measured loss, bounds, and the crossover")
    g.add_argument("--problem", choices=["least-squares", "logistic"], default="least-squares")
    g.add_argument("--steps", "-K", type=int, default=10_000, help="steps of each run")
    g.add_argument("--candidates", "-R", type=int, default=8, help="seen at each step")
    g.add_argument("--runs", type=int, default=200, help="independent repetitions")
    g.add_argument("--dim", type=int, default=20, help="number of parameters")
    g.add_argument("--step-size", type=float, default=0.5, help="η in units of 1/L, below 1")
    g.add_argument("--sigma", type=float, default=0.0, help="log-noise of approximate losses")
    g.add_argument("--distance", type=float, default=30.0, help="least squares: start to minimum")
    g.add_argument("--minority", type=float, default=0.1, help="least squares: share, other rule")
    g.add_argument("--shift", type=float, default=10.0, help="least squares: between the rules")
    g.add_argument("--label-noise", type=float, default=0.0, help="least squares: on the targets")
    g.add_argument("--signal", type=float, default=3.0, help="logistic: length of the true w")

    e = command("exit", exits, "deep linear network: how often each exit keeps the order")
    e.add_argument("--layers", type=int, default=12)
    e.add_argument("--width", type=int, default=64)
    e.add_argument(
        "--kind", choices=["residual", "gaussian", "orthogonal"], default="residual", help="layers"
    )
    e.add_argument("--scale", type=float, default=0.5, help="what a residual layer adds")
    e.add_argument("--pairs", type=int, default=20_000, help="sampled pairs")

    r = command("rho", rho, "ρ_R for Gaussian errors: exact, sampled, and the paper's bound")
    r.add_argument("--eps", type=float, default=0.0, help="mean of the errors")
    r.add_argument("--delta", type=float, default=1.0, help="standard deviation of the errors")
    r.add_argument(
        "--candidates", "-R", type=int, nargs="+", metavar="R", help="which R",
        default=[2, 3, 4, 8, 9, 16, 32, 64, 128, 256, 512, 1024],
    )  # fmt: skip
    r.add_argument("--draws", type=int, default=20_000, help="sampled maxima for each R")

    n = command("noise", noise, "what noisy losses leave of ρ_2: the bounds p(σ), and measured")
    n.add_argument(
        "--sigma", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0],
        help="noise levels",
    )  # fmt: skip
    n.add_argument("--draws", type=int, default=200_000, help="sampled pairs for each")

    s = command("estimate", estimates, "ρ, σ, order and recall from a run's audits.jsonl")
    s.add_argument("path", metavar="RUN", help="run folder, or its audits.jsonl")
    s.add_argument("--candidates", "-R", type=int, default=2, help="one is picked from so many")
    s.add_argument("--keep", type=float, default=0.5, help="share of a batch that is trained on")
    s.add_argument("--confidence", type=float, default=0.95, help="of the intervals")
    s.add_argument("--resamples", type=int, default=1000, help="of the bootstrap")
    return parser


def gsgd(args: argparse.Namespace) -> None:
    """Simulate, then show measured losses beside the bounds."""
    console = _console()
    path = check_path(args.output)
    problem: Problem
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
    with _progress("simulating") as progress:
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
            row += [_measured(arm.mean_C[i] / unit, arm.error_C[i] / unit)]
            row += [f"{arm.bound_C[i] / unit:,.1f}"]
            if arm.name != "SGD":
                row += [f"{arm.path_bound_C[i] / unit:,.1f}"] if both else []
                row += [f"{arm.ratio_C[i]:.2f}"]
        rows.append(row)
    _table(console, f"Loss of the mean iterate in units of {name}, {args.runs} runs", columns, rows)
    console.print(
        f"L = {c.L:g}, η = {s.eta:g}, D0 = {c.D0:g}, F* = {c.F_star:.4g}, "
        f"Δ_{s.R} = {c.Delta:.4g}, ρ*_{s.R} = {c.rho_star:.4g} (all exact)"
    )
    for arm_name, value in s.rho.items():
        Delta = max(c.Delta, value * c.F_star)
        meet = float(crossover_value(s.eta, c.L, value, Delta, c.F_star)) / unit
        at = s.crossover_bound(arm_name)
        console.print(
            f"{arm_name}: its bound leads SGD's {_until(at)}"
            + (f", at {meet:.3g} {name}" if 0 < at < np.inf else "")
            + f"; its measured loss leads {_until(s.crossover_measured(arm_name))}"
        )
    plot_simulation(s, path)
    console.print(f"wrote {path}")


def exits(args: argparse.Namespace) -> None:
    """Build a deep linear network and show every layer's β and order preservation."""
    console = _console()
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
    _table(console, f"P(exit keeps the order of two losses): {title}", columns, rows)
    plot_exits(betas, sampled, args.pairs, path, title=title)
    console.print(f"wrote {path}")


def rho(args: argparse.Namespace) -> None:
    """ρ_R of Gaussian errors for several R."""
    console = _console()
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
                    for m in _chunks(n, max(1, 2_000_000 // R))
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
    _table(console, title, ["R", "exact", "sampled, 95 %", "paper ≥", "of exact"], rows)
    plot_rho(sampled, args.eps, args.delta, path)
    console.print(f"wrote {path}")


def noise(args: argparse.Namespace) -> None:
    """p(σ) by every proof, beside the ratio measured on two laws of the loss."""
    console = _console()
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
    _table(console, "Share of ρ₂ that noise leaves, R = 2", columns, rows)
    plot_noise(sigmas, {k: (np.array(a), np.array(b)) for k, (a, b) in measured.items()}, path)
    console.print(f"wrote {path}")


def estimates(args: argparse.Namespace) -> None:
    """Estimate from a run's log, and say what the theory makes of it."""
    console = _console()
    path = check_path(args.output) if args.output is not None else None
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
    _table(console, title, ["", "estimate", "interval", "meaning"], rows, left=(0, 3))
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
        console.print(f"wrote {path}")


def _table(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    left: tuple[int, ...] = (),
) -> None:
    from rich import box
    from rich.table import Table

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i in left else "right", no_wrap=i not in left)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def _console() -> Console:
    from rich.console import Console

    console = Console(highlight=False, soft_wrap=False)
    if not console.is_terminal:  # a file or a pipe has no width of its own
        console.width = max(console.width, 120)
    return console


@contextmanager
def _progress(task: str) -> Iterator[Callable[[int, int], None]]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        item = bar.add_task(task, total=None)
        yield lambda done, total: bar.update(item, completed=done, total=total)


def _chunks(total: int, size: int) -> Iterator[int]:
    for start in range(0, total, size):
        yield min(size, total - start)


def _until(steps: float) -> str:
    if steps == 0:
        return "at no K"
    return "at every K" if steps == float("inf") else f"until K ≈ {steps:,.0f}"


def _measured(mean: float, error: float) -> str:
    return f"{mean:.4g} ±{error:.1g}" if np.isfinite(error) else f"{mean:.4g}"


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    print(f"warning: {message}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
