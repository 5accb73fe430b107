"""What scoring costs beside an update, from a model's shape alone: FLOPs and memory.

FLOPs are those of the matrix products, two for each multiply-add, as torch's own counter has
them; attention counts all pairs of positions, also where a causal mask hides half of them.
Memory is an estimate of what is held at the peak beside the weights and the optimizer's state.
Both are limits set by arithmetic; `benchmarks/overhead.py` measures how near a machine comes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

UPDATE = (
    3  # forwards that a forward and a backward are worth: the backward has two products for one
)
CHUNK = 2**23  # logits that scoring holds at a time; a test holds it equal to the one in use

Head = Literal["mlm", "lm"]


def _whole(name: str, value: object, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{name}={value!r}: give a whole number of at least {least}")


def _share(name: str, value: float, *, zero: bool = False) -> None:
    if not (0 < value <= 1 or (zero and value == 0)):
        raise ValueError(
            f"{name}={value!r} is not a share: give one in {'[' if zero else '('}0, 1]"
        )


@dataclass(frozen=True)
class Shape:
    """The sizes of a transformer encoder or decoder that its cost depends on.

    >>> Shape(layers=2, hidden=128, intermediate=512, vocab=1000, heads=2, length=64).parameters
    545792

    Args:
        layers: number of blocks.
        hidden: features of a position between blocks.
        intermediate: features inside a block's MLP.
        vocab: number of classes the head predicts.
        heads: attention heads.
        length: positions of a sequence.
        head: "mlm" for a square transform before the decoder (BERT), "lm" for a decoder alone.
        gated: whether the MLP has a third matrix, its gate (Llama).
        key_value_heads: heads of the keys and values, where they are fewer (grouped queries).
        head_width: features of an attention head; by default hidden / heads.
        embedding: width of the embeddings, where it is not `hidden` (ALBERT, ELECTRA).
        pooled_classes: classes predicted from a pooled first position; 2 for next sentences.
    """

    layers: int
    hidden: int
    intermediate: int
    vocab: int
    heads: int
    length: int
    head: Head = "mlm"
    gated: bool = False
    key_value_heads: int | None = None
    head_width: int | None = None
    embedding: int | None = None
    pooled_classes: int = 0

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "intermediate", "vocab", "heads", "length"):
            _whole(name, getattr(self, name), 1)
        for name in ("key_value_heads", "head_width", "embedding"):
            if getattr(self, name) is not None:
                _whole(name, getattr(self, name), 1)
        _whole("pooled_classes", self.pooled_classes, 0)
        if self.head not in ("mlm", "lm"):
            raise ValueError(
                f"head={self.head!r} is unknown: choose 'mlm' (transform and decoder) or 'lm'"
            )
        if self.head_width is None and self.hidden % self.heads:
            raise ValueError(
                f"hidden={self.hidden} does not divide into heads={self.heads}: pass head_width= "
                "where the attention is not as wide as the block"
            )
        if self.heads % (self.key_value_heads or self.heads):
            raise ValueError(
                f"heads={self.heads} is not a multiple of key_value_heads={self.key_value_heads}: "
                "each of these serves the same number of heads"
            )

    @property
    def attention(self) -> int:
        """Features of all attention heads of a position together."""
        return self.heads * (self.head_width or self.hidden // self.heads)

    @property
    def key_values(self) -> int:
        """Features of the keys, or of the values, of a position."""
        return self.attention // self.heads * (self.key_value_heads or self.heads)

    @property
    def block_weights(self) -> int:
        """Entries of one block's matrices."""
        attention = 2 * self.hidden * (self.attention + self.key_values)
        return attention + (3 if self.gated else 2) * self.hidden * self.intermediate

    @property
    def head_weights(self) -> int:
        """Entries of the matrices that turn a position's features into logits."""
        width = self.embedding or self.hidden
        projected = self.head == "mlm" or self.embedding is not None
        return width * self.vocab + (self.hidden * width if projected else 0)

    @property
    def parameters(self) -> int:
        """Entries of all matrices; the head's decoder and the embeddings counted once, as tied."""
        width = self.embedding or self.hidden
        projection = width * self.hidden if self.embedding is not None else 0
        return (
            self.layers * self.block_weights
            + self.head_weights
            + projection
            + self.length * width
            + _pooled_weights(self)
        )


BERT_BASE = Shape(
    layers=12,
    hidden=768,
    intermediate=3072,
    vocab=30522,
    heads=12,
    length=512,
    pooled_classes=2,
)

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

    >>> flops = forward_flops(BERT_BASE)
    >>> f"{flops.blocks:.3g} in the blocks, {flops.head:.3g} in the head"
    '9.66e+10 in the blocks, 2.46e+10 in the head'

    Looking up an embedding takes none; only a narrower one has a product with its projection.

    Args:
        shape: the model.
        exit: number of blocks that run; all of them by default.
        labelled: share of the positions that the head runs on.
    """
    blocks = _exit(shape, exit)
    _share("labelled", labelled, zero=True)
    projection = shape.hidden * shape.embedding if shape.embedding is not None else 0
    pairs = 2 * shape.length * shape.attention  # with every other position: scores, then values
    return Flops(
        embedding=2 * shape.length * projection,
        blocks=2 * blocks * shape.length * (shape.block_weights + pairs),
        head=2 * (labelled * shape.length * shape.head_weights + _pooled_weights(shape)),
    )


def update_flops(shape: Shape, sequences: int) -> float:
    """FLOPs of an update on some sequences: forward and backward, the head on every position.

    >>> f"{update_flops(BERT_BASE, 256):.3g}"
    '9.31e+13'

    The optimizer's step has no matrix products; its time is that of reading the weights.

    Args:
        shape: the model.
        sequences: how many are trained.
    """
    _whole("sequences", sequences, 1)
    return UPDATE * sequences * forward_flops(shape).total


def scoring_flops(
    shape: Shape, candidates: int, *, exit: int | None = 1, labelled: float = 0.15
) -> float:
    """FLOPs of scoring candidates at an exit, with the head only where labels are.

    >>> f"{scoring_flops(BERT_BASE, 512, exit=1):.3g}"
    '6.01e+12'

    Args:
        shape: the model.
        candidates: how many sequences are scored.
        exit: number of blocks that run; None for all.
        labelled: share of the positions that have a label; 1 for causal models.
    """
    _whole("candidates", candidates, 1)
    return candidates * forward_flops(shape, exit=exit, labelled=labelled).total


def scoring_ratio(
    shape: Shape, *, exit: int | None = 1, keep: float = 0.5, labelled: float = 0.15
) -> float:
    """FLOPs of scoring all candidates over those of the update on the kept ones.

    >>> round(scoring_ratio(BERT_BASE, exit=1), 3), round(scoring_ratio(BERT_BASE, exit=12), 3)
    (0.065, 0.552)

    With r in this place, sifting pays once it saves more than r / (1 + r) of the updates.

    Args:
        shape: the model.
        exit: number of blocks that run; None for all.
        keep: share of the candidates that is trained: n / keep are scored for an update on n.
        labelled: share of the positions that have a label; 1 for causal models.
    """
    _share("keep", keep)
    scored = forward_flops(shape, exit=exit, labelled=labelled).total / keep
    return scored / (UPDATE * forward_flops(shape).total)


def update_bytes(
    shape: Shape, sequences: int, *, itemsize: int = 4, dropout: bool = False
) -> float:
    """Memory that an update needs at its peak, beside the weights and the optimizer's state.

    >>> f"{update_bytes(BERT_BASE, 16) / 2**30:.1f} GiB"
    '8.3 GiB'

    Either when the backward begins, with everything that the forward has kept for it and four
    tensors of logits (the output, its log-softmax, and a gradient of each), or when it ends,
    with all gradients and the output.

    Args:
        shape: the model.
        sequences: how many are trained at once.
        itemsize: bytes of a number.
        dropout: whether there is dropout, as torch does it on a CPU: masks of the activations'
            own type, and attention not fused, so that three maps of all pairs are kept. Without
            it attention is taken to be fused.
    """
    _whole("sequences", sequences, 1)
    _whole("itemsize", itemsize, 1)
    tokens = sequences * shape.length
    # inputs and outputs of each product and normalisation
    kept = 4 * shape.hidden + 2 * (shape.attention + shape.key_values)
    kept += (4 if shape.gated else 2) * shape.intermediate
    if dropout:
        kept += 2 * shape.hidden + 3 * shape.heads * shape.length
    around = (5 if shape.head == "mlm" else 2) * (shape.embedding or shape.hidden)
    begin = tokens * (shape.layers * kept + around + 4 * shape.vocab)
    end = shape.parameters + tokens * shape.vocab
    return itemsize * float(max(begin, end))


def scoring_bytes(
    shape: Shape,
    candidates: int,
    *,
    labelled: float = 0.15,
    itemsize: int = 4,
    chunk: int = CHUNK,
    copies: int = 2,
) -> float:
    """Memory that scoring needs at its peak, beside the weights: the same at every exit.

    >>> f"{scoring_bytes(BERT_BASE, 32) / 2**30:.1f} GiB"
    '0.5 GiB'

    Either inside a block's MLP, or in the head with a chunk of logits and what the score makes of
    them. Nothing is kept from one block to the next. The first batch is not counted, in which two
    sequences go through the whole model.

    Args:
        shape: the model.
        candidates: how many sequences are scored at once.
        labelled: share of the positions that have a label.
        itemsize: bytes of a number.
        chunk: logits held at a time.
        copies: tensors of that size at the peak; 2 for score="loss", 4 for "entropy".
    """
    _whole("candidates", candidates, 1)
    _whole("itemsize", itemsize, 1)
    _whole("chunk", chunk, 1)
    _whole("copies", copies, 1)
    _share("labelled", labelled, zero=True)
    tokens = candidates * shape.length
    mlp = tokens * (2 * shape.hidden + (3 if shape.gated else 2) * shape.intermediate)
    rows = labelled * tokens
    logits = min(rows * shape.vocab, max(chunk, shape.vocab))
    head = (tokens + rows) * shape.hidden + copies * logits
    return itemsize * float(max(mlp, head))


def _pooled_weights(shape: Shape) -> int:
    if not shape.pooled_classes:
        return 0
    return shape.hidden * (shape.hidden + shape.pooled_classes)


def _exit(shape: Shape, exit: int | None) -> int:
    if exit is None:
        return shape.layers
    if isinstance(exit, bool) or not isinstance(exit, int) or not 1 <= exit <= shape.layers:
        raise ValueError(
            f"exit={exit!r} is not a block of a model with {shape.layers}: choose 1 to "
            f"{shape.layers}, or None for the whole model"
        )
    return exit
