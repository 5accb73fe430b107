"""`sift theory`: the theory against measurement, as a table in the terminal and a plot file."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from sifting.cli import theory_commands as commands
from sifting.cli import theory_past as past
from sifting.terminal import say


def main(argv: Sequence[str] | None = None) -> int:
    """Run `sift theory COMMAND …`; 0 if it went well, 2 if the request was wrong."""
    args = build_parser().parse_args(argv)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.showwarning = _show_warning
            args.run(args)
    except (ValueError, TypeError, OSError) as error:
        say(f"sift theory {args.command}: {error}", error=True)
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
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], None], line: str) -> Any:
        sub = subparsers.add_parser(
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

    g = command(
        "gsgd", commands.gsgd, "greedy SGD against SGD: measured loss, bounds, and the crossover"
    )
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

    e = command("exit", commands.exits, "deep linear network: how often each exit keeps the order")
    e.add_argument("--layers", type=int, default=12)
    e.add_argument("--width", type=int, default=64)
    e.add_argument(
        "--kind", choices=["residual", "gaussian", "orthogonal"], default="residual", help="layers"
    )
    e.add_argument("--scale", type=float, default=0.5, help="what a residual layer adds")
    e.add_argument("--pairs", type=int, default=20_000, help="sampled pairs")

    r = command(
        "rho", commands.rho, "ρ_R for Gaussian errors: exact, sampled, and the paper's bound"
    )
    r.add_argument("--eps", type=float, default=0.0, help="mean of the errors")
    r.add_argument("--delta", type=float, default=1.0, help="standard deviation of the errors")
    r.add_argument(
        "--candidates", "-R", type=int, nargs="+", metavar="R", help="which R",
        default=[2, 3, 4, 8, 9, 16, 32, 64, 128, 256, 512, 1024],
    )  # fmt: skip
    r.add_argument("--draws", type=int, default=20_000, help="sampled maxima for each R")

    n = command(
        "noise", commands.noise, "what noisy losses leave of ρ_2: the bounds p(σ), and measured"
    )
    n.add_argument(
        "--sigma", type=float, nargs="+", default=[0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0],
        help="noise levels",
    )  # fmt: skip
    n.add_argument("--draws", type=int, default=200_000, help="sampled losses for each, over R")
    n.add_argument("--candidates", "-R", type=int, default=2, help="seen at each step")
    n.add_argument("--kept", "-k", type=int, default=1, help="of them, those that look largest")

    k = command(
        "kept", past.kept, "selecting only while the kept carry the loss, beside GSGD and SGD"
    )
    k.add_argument("--problem", choices=["all", *past.KEPT_PROBLEMS], default="all")
    k.add_argument("--steps", "-K", type=int, default=4000, help="steps of each run")
    k.add_argument("--candidates", "-B", type=int, default=16, help="seen at each step")
    k.add_argument("--batch", "-b", type=int, default=1, help="samples that SGD and GSGD train on")
    k.add_argument("--epsilon", type=float, default=0.02, help="share of the loss to drop")
    k.add_argument("--per-loss", type=float, help="drop at most this times the loss")
    k.add_argument("--decay", type=float, default=0.0, help="steps and ε fall with this power")
    k.add_argument("--runs", type=int, default=100, help="independent repetitions")
    k.add_argument("--dim", type=int, default=20, help="number of parameters")
    k.add_argument("--step-size", type=float, default=0.5, help="in units of the longest proved")

    w = command(
        "weakly-convex", past.weakly_convex, "greedy SGD without convexity: rates and their bounds"
    )
    w.add_argument("--steps", "-K", type=int, default=4000, help="steps of each run")
    w.add_argument("--candidates", "-R", type=int, default=4, help="seen at each step")
    w.add_argument("--runs", type=int, default=20, help="independent repetitions")
    w.add_argument("--dim", type=int, default=2, help="number of parameters")
    w.add_argument("--slope", type=float, default=0.8, help="least slope of the leaky neuron")
    w.add_argument("--sigma", type=float, default=0.0, help="log-noise of approximate losses")

    s = command("estimate", commands.estimates, "ρ, σ, order and recall from a run's audits.jsonl")
    s.add_argument("path", metavar="RUN", help="run folder, or its audits.jsonl")
    s.add_argument(
        "--candidates", "-R", type=int, default=2, help="candidates that one is picked from"
    )
    s.add_argument("--keep", type=float, default=0.5, help="share of a batch that is trained on")
    s.add_argument("--confidence", type=float, default=0.95, help="of the intervals")
    s.add_argument("--resamples", type=int, default=1000, help="of the bootstrap")
    return parser


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    say(f"warning: {message}", error=True)


if __name__ == "__main__":
    raise SystemExit(main())
