"""`sift cost`: what scoring will take beside training, from a model's config alone.

    sift cost                                   # the paper's BERT-base at length 512
    sift cost path/to/config.json --exit 2 --length 1024 --labelled 1 --devices 64 --batch 8

FLOPs, memory, the share of time that follows if scoring does its products as fast as the update
does, and what ranks send each other. Nothing is run: these are predictions.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sifting import cost
from sifting.selection.schedule import kept_count

GATED = ("llama", "mistral", "mixtral", "qwen", "gemma", "phi3", "olmo", "smollm", "granite")


@dataclass(frozen=True)
class Prediction:
    """One step of a sifted run.

    Attributes:
        exit, blocks: blocks that scoring runs, and that the model has.
        devices: ranks that train together.
        candidates, kept: sequences that a device scores and trains in a step.
        parameters: of the model.
        scoring_flops, update_flops: of a step, on a device.
        ratio: of those two.
        scoring_share: of a step's time, r / (1 + r) for the ratio r.
        scoring_bytes, update_bytes: peak memory of a device beside weights and optimizer.
        moved: of all kept sequences, how many change their device where all choose together.
        gathered_bytes: what scoring adds to the parameters that a sharded model gathers.
        scoring_seconds, update_seconds, talking_seconds: where speeds are given; talking is
            what scoring adds to it: moving samples, and gathering blocks if sharded.
    """

    exit: int
    blocks: int
    devices: int
    candidates: int
    kept: int
    parameters: int
    scoring_flops: float
    update_flops: float
    ratio: float
    scoring_share: float
    scoring_bytes: float
    update_bytes: float
    moved: float
    gathered_bytes: float
    scoring_seconds: float | None = None
    update_seconds: float | None = None
    talking_seconds: float | None = None


def predict(
    shape: cost.Shape,
    *,
    exit: int | None = 1,
    keep: float = 0.5,
    labelled: float = 0.15,
    batch: int = 32,
    devices: int = 1,
    itemsize: int = 4,
    entropy: bool = False,
    tflops: float | None = None,
    bandwidth: float | None = None,
    sequence_bytes: int | None = None,
) -> Prediction:
    """What one step costs each of some devices.

    >>> p = predict(cost.BERT_BASE, exit=1, devices=8)
    >>> p.candidates, p.kept, round(p.scoring_share, 3), round(p.moved)
    (64, 32, 0.061, 27)

    Args:
        shape: the model.
        exit: blocks that scoring runs; None for all.
        keep: share of the candidates that is trained.
        labelled: share of the positions that have a label; 1 for causal models.
        batch: sequences that a device trains in a step.
        devices: how many there are.
        itemsize: bytes of a number; 2 for bf16.
        entropy: whether the score is the entropy, which holds more logits at once.
        tflops: trillions of FLOPs a second that the model is known to reach on a device.
        bandwidth: gigabytes a second between devices.
        sequence_bytes: of one sequence in a batch; by default four columns of 64-bit integers.
    """
    if devices < 1 or batch < 1:
        raise ValueError(f"devices={devices}, batch={batch}: give at least 1 of each")
    for name, value in (("tflops", tflops), ("bandwidth", bandwidth)):
        if value is not None and not value > 0:
            raise ValueError(f"{name}={value}: give a speed above 0, or leave it out")
    ratio = cost.scoring_ratio(shape, exit=exit, keep=keep, labelled=labelled)
    candidates = round(batch / keep)
    if kept_count(keep, candidates) != batch:
        raise ValueError(
            f"batch={batch} is not keep={keep} of any number of candidates: {candidates} would keep "
            f"{kept_count(keep, candidates)}"
        )
    blocks = shape.layers if exit is None else exit
    scoring = cost.scoring_flops(shape, candidates, exit=exit, labelled=labelled)
    update = cost.update_flops(shape, batch)
    moved = moved_samples(candidates, keep, devices)
    gathered = blocks * shape.block_weights * itemsize * (devices - 1) / devices
    speed = None if tflops is None else tflops * 1e12
    talking = None
    if bandwidth is not None:
        each = sequence_bytes if sequence_bytes is not None else 4 * 8 * shape.length
        talking = (moved / devices * each + gathered) / (bandwidth * 1e9)
    return Prediction(
        exit=blocks,
        blocks=shape.layers,
        devices=devices,
        candidates=candidates,
        kept=batch,
        parameters=shape.parameters,
        scoring_flops=scoring,
        update_flops=update,
        ratio=ratio,
        scoring_share=ratio / (1 + ratio),
        scoring_bytes=cost.scoring_bytes(
            shape, candidates, labelled=labelled, itemsize=itemsize, copies=4 if entropy else 2
        ),
        update_bytes=cost.update_bytes(shape, batch, itemsize=itemsize),
        moved=moved,
        gathered_bytes=gathered,
        scoring_seconds=None if speed is None else scoring / speed,
        update_seconds=None if speed is None else update / speed,
        talking_seconds=talking,
    )


def moved_samples(candidates: int, keep: float, devices: int) -> float:
    """How many kept samples change their device, on average, where all devices choose together.

    >>> [round(moved_samples(64, 0.5, devices)) for devices in (1, 2, 8)]
    [0, 2, 27]

    The kept are dealt out in order, so a sample stays where its place among them is one of its
    device's own. By how much the first j devices hold more or fewer than their part is, for data
    in random order, nearly normal.

    Args:
        candidates: of each device.
        keep: share that is kept.
        devices: how many.
    """
    count = kept_count(keep, candidates)
    moved = 0.0
    for j in range(1, devices):
        spread = math.sqrt(keep * (1 - keep) * candidates * j * (devices - j) / devices)
        # over a place between two devices, in either direction, from each distance to it
        tails = (math.erfc((a + 0.5) / spread / math.sqrt(2)) / 2 for a in range(count))
        moved += 2 * sum(tails) if spread > 0 else 0.0
    return moved


def shape_of(config: Mapping[str, Any], *, length: int) -> cost.Shape:
    """The shape of a transformer, from its Hugging Face config.

    >>> shape_of({"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "vocab_size": 9,
    ...           "architectures": ["GPT2LMHeadModel"]}, length=4).intermediate
    32
    """

    def find(*names: str, default: Any = None) -> Any:
        found = next((config[name] for name in names if config.get(name) is not None), default)
        if found is None:
            raise ValueError(f"the config has none of {', '.join(names)}: is it a transformer's?")
        return found

    kind = str(config.get("model_type", ""))
    names = " ".join(config.get("architectures") or ())
    causal = "CausalLM" in names or "LMHead" in names or (not names and kind.startswith(GATED))
    hidden = find("hidden_size", "n_embd", "d_model", "dim")
    return cost.Shape(
        layers=find("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        hidden=hidden,
        intermediate=find(
            "intermediate_size", "n_inner", "hidden_dim", "ffn_dim", default=4 * hidden
        ),
        vocab=find("vocab_size"),
        heads=find("num_attention_heads", "n_head", "n_heads"),
        length=length,
        head="lm" if causal else "mlm",
        gated=kind.startswith(GATED),
        key_value_heads=config.get("num_key_value_heads"),
        head_width=config.get("head_dim"),
        embedding=config.get("embedding_size"),
        pooled_classes=2 if "ForPreTraining" in names and kind == "bert" else 0,
    )


def report(name: str, p: Prediction, args: argparse.Namespace) -> str:
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
    lines = [
        f"{name}: {p.parameters / 1e6:.0f} M parameters, exit {p.exit} of {p.blocks}, length {args.length}, "
        f"keep {args.keep}, {p.devices} × {p.kept} trained a step",
        "",
        *(f"{a:<28}{b:>10}{c:>10}" for a, b, c in rows),
        "",
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
    add("--batch", type=int, default=32, help="sequences that a device trains in a step")
    add("--devices", type=int, default=1)
    add("--itemsize", type=int, default=4, help="bytes of a number: 2 for bf16")
    add("--score", choices=("loss", "entropy"), default="loss")
    add("--tflops", type=float, help="what a device reaches on this model, for seconds")
    add("--bandwidth", type=float, help="GB/s between devices, for seconds of talking")
    add("--json", action="store_true", help="the figures as JSON")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print a prediction."""
    args = build_parser().parse_args(argv)
    try:
        if args.config == "bert-base":
            shape = replace(cost.BERT_BASE, length=args.length)
        else:
            path = Path(args.config)
            path = path / "config.json" if path.is_dir() else path
            shape = shape_of(json.loads(path.read_text(encoding="utf-8")), length=args.length)
        if args.exit != "last" and not args.exit.isdigit():
            raise ValueError(f"--exit {args.exit}: give a block number, or 'last'")
        found = predict(
            shape,
            exit=None if args.exit == "last" else int(args.exit),
            keep=args.keep,
            labelled=args.labelled,
            batch=args.batch,
            devices=args.devices,
            itemsize=args.itemsize,
            entropy=args.score == "entropy",
            tflops=args.tflops,
            bandwidth=args.bandwidth,
        )
    except (ValueError, OSError) as error:
        print(f"sift cost: {error}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(found), indent=1) if args.json else report(args.config, found, args))
    return 0
