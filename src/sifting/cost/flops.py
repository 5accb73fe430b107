"""FLOPs of scoring and of an update: those of the matrix products, two for each multiply-add.

As torch's own counter has them; attention counts all pairs of positions, also where a causal mask
hides half of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from sifting.cost.shapes import Shape, check_exit, check_share, check_whole

ScoredRows = int | Literal["labelled"]

# forwards that a forward and a backward are worth: the backward has two products for one
UPDATE = 3

# The paper's table of sampling times: hours spent scoring while BERT-base was trained at length
# 512 on A100s, by score and exit. The updates took about 3.8 h forward and 7.9 h backward.
PAPER_SCORING_HOURS: dict[str, dict[int, float]] = {
    "loss": {1: 0.8452, 2: 1.1662, 3: 1.4764, 6: 2.5901, 12: 4.5086},
    "entropy": {1: 0.9121, 2: 1.2181, 3: 1.5398, 6: 2.6195, 12: 4.5148},
}
PAPER_FORWARD_HOURS = 3.8
PAPER_BACKWARD_HOURS = 7.9


def paper_ratio(exit: int, *, score: str = "loss") -> float:
    """The paper's measured scoring time over the time of its updates.

    >>> [round(paper_ratio(exit), 3) for exit in (1, 2, 3, 6, 12)]
    [0.072, 0.1, 0.126, 0.221, 0.385]

    Args:
        exit: 1, 2, 3, 6 or 12.
        score: "loss" or "entropy".
    """
    if score not in PAPER_SCORING_HOURS:
        raise ValueError(f"score={score!r}: the paper timed {', '.join(PAPER_SCORING_HOURS)}")
    hours = PAPER_SCORING_HOURS[score]
    if exit not in hours:
        raise ValueError(f"exit={exit!r}: the paper timed exits {', '.join(map(str, hours))}")
    return hours[exit] / (PAPER_FORWARD_HOURS + PAPER_BACKWARD_HOURS)


@dataclass(frozen=True)
class Flops:
    """FLOPs of one sequence's forward, by where they are spent.

    >>> Flops(embedding=0, blocks=30, head=10).total
    40
    """

    embedding: float
    blocks: float
    head: float

    @property
    def total(self) -> float:
        return self.embedding + self.blocks + self.head


def forward_flops(shape: Shape, *, exit: int | None = None, labelled: float = 1.0) -> Flops:
    """FLOPs of one sequence's forward, up to an exit and with the head on some positions.

    >>> from sifting.cost import BERT_BASE
    >>> flops = forward_flops(BERT_BASE)
    >>> f"{flops.blocks:.3g} in the blocks, {flops.head:.3g} in the head"
    '9.66e+10 in the blocks, 2.46e+10 in the head'

    Looking up an embedding takes none; only a narrower one has a product with its projection.

    Args:
        shape: the model.
        exit: number of blocks that run; all of them by default.
        labelled: share of the positions that the head runs on.
    """
    blocks = check_exit(shape, exit)
    check_share("labelled", labelled, zero=True)
    projection = shape.hidden * shape.embedding if shape.embedding is not None else 0
    pairs = 2 * shape.length * shape.attention  # with every other position: scores, then values
    return Flops(
        embedding=2 * shape.length * projection,
        blocks=2 * blocks * shape.length * (shape.block_weights + pairs),
        head=2 * (labelled * shape.length * shape.head_weights + shape.pooled_weights),
    )


def seen_flops(
    shape: Shape,
    *,
    exit: int | None = 1,
    labelled: float = 0.15,
    rows: ScoredRows | None = None,
    view: int | None = None,
) -> Flops:
    """FLOPs of scoring one sequence by as much of it as is looked at.

    >>> from sifting.cost import BERT_BASE
    >>> whole, less = seen_flops(BERT_BASE), seen_flops(BERT_BASE, rows="labelled")
    >>> round(less.blocks / whole.blocks, 2), less.head == whole.head
    (0.36, True)

    With `rows`, the exit's block makes keys and values of every position, and everything else only of
    those that are scored: so it is where queries, keys and values have matrices of their own. Attention
    counts all pairs.

    Args:
        shape: the model.
        exit: number of blocks that run; None for all.
        labelled: share of the positions that have a label; 1 for causal models.
        rows: labelled positions of each sequence that are scored, or "labelled" for all of them.
        view: positions that are looked at, from the first.
    """
    if view is not None:
        check_whole("view", view, 1)
        shape = replace(shape, length=min(view, shape.length))
    whole = forward_flops(shape, exit=exit, labelled=labelled)
    if rows is None:
        return whole
    share = labelled
    if rows != "labelled":
        check_whole("rows", rows, 1)
        share = min(labelled, int(rows) / shape.length)
    fewer = forward_flops(shape, exit=exit, labelled=share)
    if exit is None:  # the whole model runs, and the head alone on fewer
        return fewer
    elsewhere = shape.block_weights - 2 * shape.hidden * shape.key_values
    spared = 2 * (1 - share) * shape.length * elsewhere
    return replace(fewer, blocks=fewer.blocks - spared)


def update_flops(shape: Shape, sequences: int, *, frozen: int = 0, reused: int = 0) -> float:
    """FLOPs of an update on some sequences: forward and backward, the head on every position.

    >>> from sifting.cost import BERT_BASE
    >>> f"{update_flops(BERT_BASE, 256):.3g}, {update_flops(BERT_BASE, 256, frozen=12):.3g}"
    '9.31e+13, 4.36e+13'

    The optimizer's step has no matrix products; its time is that of reading the weights.

    Args:
        shape: the model.
        sequences: how many are trained.
        frozen: first blocks in which nothing is trained, nor in the embedding: no backward goes there.
        reused: first blocks whose states are taken from scoring, so that they are not run.
    """
    check_whole("sequences", sequences, 1)
    check_whole("frozen", frozen, 0)
    if frozen > shape.layers:
        raise ValueError(f"frozen={frozen}: the model has {shape.layers} blocks")
    if reused > frozen:
        raise ValueError(
            f"states after block {reused} can be used again only where nothing before it is trained, and "
            f"frozen={frozen}"
        )
    whole = forward_flops(shape)
    block = whole.blocks / shape.layers
    forward = whole.total - reused * block  # embeddings run all the same
    backward = (UPDATE - 1) * (whole.total - (whole.embedding + frozen * block if frozen else 0))
    return sequences * (forward + backward)


def scoring_flops(
    shape: Shape,
    candidates: int,
    *,
    exit: int | None = 1,
    labelled: float = 0.15,
    rows: ScoredRows | None = None,
    view: int | None = None,
) -> float:
    """FLOPs of scoring candidates at an exit, with the head only where labels are.

    >>> from sifting.cost import BERT_BASE
    >>> f"{scoring_flops(BERT_BASE, 512, exit=1):.3g}"
    '6.01e+12'

    Args:
        shape: the model.
        candidates: how many sequences are scored.
        exit: number of blocks that run; None for all.
        labelled: share of the positions that have a label; 1 for causal models.
        rows, view: what is scored of each; see `seen_flops`.
    """
    check_whole("candidates", candidates, 1)
    one = seen_flops(shape, exit=exit, labelled=labelled, rows=rows, view=view)
    return candidates * one.total


def scoring_ratio(
    shape: Shape,
    *,
    exit: int | None = 1,
    keep: float = 0.5,
    labelled: float = 0.15,
    rows: ScoredRows | None = None,
    view: int | None = None,
) -> float:
    """FLOPs of scoring all candidates over those of the update on the kept ones.

    >>> from sifting.cost import BERT_BASE
    >>> round(scoring_ratio(BERT_BASE, exit=1), 3), round(scoring_ratio(BERT_BASE, exit=12), 3)
    (0.065, 0.552)

    With r in this place, sifting pays once it saves more than r / (1 + r) of the updates.

    Args:
        shape: the model.
        exit: number of blocks that run; None for all.
        keep: share of the candidates that is trained: n / keep are scored for an update on n.
        labelled: share of the positions that have a label; 1 for causal models.
        rows, view: what is scored of each; see `seen_flops`.
    """
    check_share("keep", keep)
    one = seen_flops(shape, exit=exit, labelled=labelled, rows=rows, view=view)
    scored = one.total / keep
    return scored / (UPDATE * forward_flops(shape).total)
