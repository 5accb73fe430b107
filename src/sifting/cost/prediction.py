"""What one step of a sifted run costs each of some devices."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from sifting.cost.flops import ScoredRows, scoring_flops, scoring_ratio, update_flops
from sifting.cost.memory import scoring_bytes, update_bytes
from sifting.cost.shapes import Shape
from sifting.selection.schedule import kept_count


@dataclass(frozen=True)
class PredictedCost:
    """One step of a sifted run.

    Attributes:
        exit, blocks: blocks that scoring runs, and that the model has.
        devices: ranks that train together.
        candidates, kept: sequences that a device scores and trains in a step.
        parameters: of the model.
        scoring_flops, update_flops: of a step, on a device; the update as it is without sifting.
        reused_flops: of these, what a sifted update takes over from scoring (`reuse`).
        ratio: scoring over the update.
        added: time that sifting adds to a step, over the update's: the ratio, less what is reused, or what
            of it does not fit beside the update (`ahead`).
        scoring_share: of a step's time, a / (1 + a) for what is added.
        scoring_bytes, update_bytes: peak memory of a device beside weights and optimizer.
        peak_bytes: of both: the larger, or their sum where they run at once.
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
    reused_flops: float
    ratio: float
    added: float
    scoring_share: float
    scoring_bytes: float
    update_bytes: float
    peak_bytes: float
    moved: float
    gathered_bytes: float
    scoring_seconds: float | None = None
    update_seconds: float | None = None
    talking_seconds: float | None = None


def predict(
    shape: Shape,
    *,
    exit: int | None = 1,
    keep: float = 0.5,
    labelled: float = 0.15,
    rows: ScoredRows | None = None,
    view: int | None = None,
    frozen: int = 0,
    reuse: bool = False,
    ahead: int = 0,
    idle: float = 0.0,
    batch: int = 32,
    devices: int = 1,
    itemsize: int = 4,
    entropy: bool = False,
    tflops: float | None = None,
    bandwidth: float | None = None,
    sequence_bytes: int | None = None,
) -> PredictedCost:
    """What one step costs each of some devices.

    >>> from sifting.cost import BERT_BASE
    >>> p = predict(BERT_BASE, exit=1, devices=8)
    >>> p.candidates, p.kept, round(p.scoring_share, 3), round(p.moved)
    (64, 32, 0.061, 27)

    Args:
        shape: the model.
        exit: blocks that scoring runs; None for all.
        keep: share of the candidates that is trained.
        labelled: share of the positions that have a label; 1 for causal models.
        rows: labelled positions of each sequence that are scored, or "labelled" for all of them and
            nothing else of the exit's block.
        view: positions of each that are looked at.
        frozen: first blocks in which nothing is trained, nor in the embedding.
        reuse: whether the kept take their states after the exit from scoring, which needs those blocks
            frozen; where the whole model scores, those after the frozen blocks.
        ahead: 1 where the next candidates are scored beside the step.
        idle: with `ahead`, what could be computed beside an update without slowing it, over the update's own
            computing: 0 on a device that is busy to its limit, 1 where another as fast does nothing.
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
    _check_ways(rows=rows, view=view, reuse=reuse, ahead=ahead, idle=idle)
    less: dict[str, Any] = {"labelled": labelled, "rows": rows, "view": view}
    scoring_ratio(shape, exit=exit, keep=keep, **less)  # says what is wrong with them
    if keep == 1:
        raise ValueError(
            "keep=1 trains every candidate, and nothing is scored: give a share below 1"
        )
    candidates = round(batch / keep)
    if kept_count(keep, candidates) != batch:
        raise ValueError(
            f"batch={batch} is not keep={keep} of any number of candidates: {candidates} would keep "
            f"{kept_count(keep, candidates)}"
        )
    blocks = shape.layers if exit is None else exit
    scoring = scoring_flops(shape, candidates, exit=exit, **less)
    update = update_flops(shape, batch, frozen=frozen)
    if reuse and not frozen:
        raise ValueError(
            "states can be used again only after blocks in which nothing is trained, and frozen=0"
        )
    # the whole model is left where training begins, an exit where it scores
    reused = (frozen if exit is None else blocks) if reuse else 0
    spared = update - update_flops(shape, batch, frozen=frozen, reused=reused)
    ratio = scoring / update
    added = max(0.0, ratio - idle) if ahead else ratio - spared / update
    seen = shape if view is None else replace(shape, length=min(view, shape.length))
    scoring_peak = scoring_bytes(
        seen, candidates, labelled=labelled, itemsize=itemsize, copies=4 if entropy else 2
    )
    update_peak = update_bytes(shape, batch, itemsize=itemsize, frozen=frozen)
    moved = moved_samples(candidates, keep, devices)
    gathered = blocks * shape.block_weights * itemsize * (devices - 1) / devices
    speed = None if tflops is None else tflops * 1e12
    talking = None
    if bandwidth is not None:
        each = sequence_bytes if sequence_bytes is not None else 4 * 8 * shape.length
        talking = (moved / devices * each + gathered) / (bandwidth * 1e9)
    return PredictedCost(
        exit=blocks,
        blocks=shape.layers,
        devices=devices,
        candidates=candidates,
        kept=batch,
        parameters=shape.parameters,
        scoring_flops=scoring,
        update_flops=update,
        reused_flops=spared,
        ratio=ratio,
        added=added,
        scoring_share=added / (1 + added),
        scoring_bytes=scoring_peak,
        update_bytes=update_peak,
        peak_bytes=scoring_peak + update_peak if ahead else max(scoring_peak, update_peak),
        moved=moved,
        gathered_bytes=gathered,
        scoring_seconds=None if speed is None else scoring / speed,
        update_seconds=None if speed is None else update / speed,
        talking_seconds=talking,
    )


def _check_ways(
    *, rows: ScoredRows | None, view: int | None, reuse: bool, ahead: int, idle: float
) -> None:
    """Raise where these do not go together, as a sifter does."""
    if ahead not in (0, 1):
        raise ValueError(f"ahead={ahead}: choose 1, or 0 to score when candidates are asked for")
    if not 0 <= idle <= 1:
        raise ValueError(f"idle={idle} is not in [0, 1]: it is a share of an update's computing")
    if idle and not ahead:
        raise ValueError(
            f"idle={idle} is of use only with ahead=1: else nothing runs beside the update"
        )
    for name, given in (("rows", rows), ("view", view), ("ahead", ahead or None)):
        if reuse and given is not None:
            raise ValueError(f"reuse does not go with {name}={given}: leave one of them out")


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
