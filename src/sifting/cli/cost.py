"""`sift cost`: what scoring will take beside training, from a model's config alone.

    sift cost                                   # the paper's BERT-base at length 512
    sift cost --length 128 --rows labelled      # the exit's block only where labels are
    sift cost --exit 6 --frozen 8 --reuse       # adapters on the upper blocks
    sift cost --ahead 1 --idle 0.1              # beside the step, on a device that is idle a tenth of it
    sift cost path/to/config.json --exit 2 --length 1024 --labelled 1 --devices 64 --batch 8

FLOPs, memory, the share of time that follows if scoring does its products as fast as the update
does, and what ranks send each other. Nothing is run: these are predictions.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from sifting.checksums import parse_object
from sifting.cost import BERT_BASE, PredictedCost, Shape, predict, shape_of
from sifting.terminal import say


def report(name: str, p: PredictedCost, args: argparse.Namespace) -> str:
    """The prediction as a table."""
    rows = [
        ("a step, on each device", "scoring", "update"),
        ("sequences", f"{p.candidates}", f"{p.kept}"),
        ("teraFLOPs", f"{p.scoring_flops / 1e12:.3g}", f"{p.update_flops / 1e12:.3g}"),
        ("memory beside weights, GiB", *(f"{b / 2**30:.1f}" for b in (p.scoring_bytes, p.update_bytes))),
        ("share of time", f"{p.scoring_share:.1%}", f"{1 - p.scoring_share:.1%}"),
    ]  # fmt: skip
    if p.scoring_seconds is not None and p.update_seconds is not None:
        rows.append(("seconds", f"{p.scoring_seconds:.3f}", f"{p.update_seconds:.3f}"))
    left_out = "".join(
        f", {option} {value}"
        for option, value in (
            ("rows", args.rows),
            ("view", args.view),
            ("frozen", args.frozen or None),
        )
        if value is not None
    )
    lines = [
        f"{name}: {p.parameters / 1e6:.0f} M parameters, exit {p.exit} of {p.blocks}, length {args.length}, "
        f"keep {args.keep}{left_out}, {p.devices} × {p.kept} trained a step",
        "",
        *(f"{a:<28}{b:>10}{c:>10}" for a, b, c in rows),
        "",
        *_ways(p, args),
        f"sifting pays once it saves more than {p.scoring_share:.1%} of the steps",
    ]
    if p.devices > 1:
        kept = p.devices * p.kept
        lines += [
            f"all devices: {p.devices * p.candidates} candidates, {kept} trained a step",
            f'scope="global": about {p.moved:.0f} of the {kept} move to another device',
            f"fully_shard: scoring gathers {p.gathered_bytes / 1e6:.0f} MB more on each device",
        ]
    if p.talking_seconds is not None:
        lines.append(
            f"both at {args.bandwidth:g} GB/s: {p.talking_seconds:.4f} s a step, if not hidden"
        )
    return "\n".join(lines)


def _ways(p: PredictedCost, args: argparse.Namespace) -> list[str]:
    """What becomes of scoring's time where it is not simply added to the update's."""
    if args.reuse:
        return [
            f"reuse: the kept take {p.reused_flops / 1e12:.3g} teraFLOPs of the update from scoring, and "
            f"sifting adds {p.added:.3f} of an update, not {p.ratio:.3f}"
        ]
    if args.ahead:
        return [
            f"ahead: {min(p.ratio, args.idle):.3f} of an update is scored beside it and {p.added:.3f} added to "
            f"it, where {args.idle:g} of its computing could be done beside; both at once take "
            f"{p.peak_bytes / 2**30:.1f} GiB"
        ]
    return []


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="sift cost",
        description="Predict what scoring costs beside training: FLOPs, memory, share of time.",
    )
    add = parser.add_argument
    add("config", nargs="?", default="bert-base", help="config.json of a transformer, or bert-base")
    add("--exit", default="1", help="block that scoring leaves at, or 'last'")
    add("--length", type=int, default=512, help="positions of a sequence")
    add("--keep", type=float, default=0.5, help="share of the candidates that is trained")
    add("--labelled", type=float, default=0.15, help="share of positions with a label; 1 if causal")
    add(
        "--rows",
        help="labelled positions of each that are scored, or 'labelled' for all and no others",
    )
    add("--view", type=int, help="positions of each that are looked at, from the first")
    add("--frozen", type=int, default=0, help="number of first blocks that are frozen")
    add(
        "--reuse",
        action="store_true",
        help="the kept take their states after the exit from scoring",
    )
    add("--ahead", type=int, default=0, help="1 where candidates are scored beside the step before")
    add(
        "--idle",
        type=float,
        default=0.0,
        help="what a device could compute during an update, as a multiple of the update's: 1 for one more device",
    )
    add("--batch", type=int, default=32, help="sequences that a device trains in a step")
    add("--devices", type=int, default=1)
    add("--itemsize", type=int, default=4, help="bytes of a number: 2 for bf16")
    add("--score", choices=("loss", "entropy"), default="loss")
    add(
        "--tflops",
        type=float,
        help="FLOP/s that a device reaches on this model, to predict seconds",
    )
    add("--bandwidth", type=float, help="GB/s between devices, to predict seconds of communication")
    add("--json", action="store_true", help="the same as JSON")
    return parser


def _shape_in(path: Path, length: int) -> Shape:
    try:
        return shape_of(parse_object(path.read_bytes(), path), length=length)
    except TypeError as error:
        raise ValueError(f"{path} is not a transformer's config: {error}") from error


def main(argv: Sequence[str] | None = None) -> int:
    """Print a prediction."""
    args = build_parser().parse_args(argv)
    try:
        if args.config == "bert-base":
            shape = replace(BERT_BASE, length=args.length)
        else:
            path = Path(args.config)
            path = path / "config.json" if path.is_dir() else path
            shape = _shape_in(path, args.length)
        if args.exit != "last" and not args.exit.isdigit():
            raise ValueError(f"--exit {args.exit}: give a block number, or 'last'")
        if args.exit != "last" and not 1 <= int(args.exit) <= shape.layers:
            raise ValueError(
                f"exit={args.exit} is not a block of a model with {shape.layers}: choose 1 to "
                f"{shape.layers}, or 'last'"
            )
        if args.rows not in (None, "labelled") and not args.rows.isdigit():
            raise ValueError(f"--rows {args.rows}: give a number of positions, or 'labelled'")
        found = predict(
            shape,
            exit=None if args.exit == "last" else int(args.exit),
            keep=args.keep,
            labelled=args.labelled,
            rows=int(args.rows) if args.rows and args.rows.isdigit() else args.rows,
            view=args.view,
            frozen=args.frozen,
            reuse=args.reuse,
            ahead=args.ahead,
            idle=args.idle,
            batch=args.batch,
            devices=args.devices,
            itemsize=args.itemsize,
            entropy=args.score == "entropy",
            tflops=args.tflops,
            bandwidth=args.bandwidth,
        )
    except (ValueError, OSError) as error:
        say(f"sift cost: {error}", error=True)
        return 2
    say(json.dumps(asdict(found), indent=1) if args.json else report(args.config, found, args))
    return 0
