"""Memory that is held at the peak beside the weights and the optimizer's state: an estimate."""

from __future__ import annotations

from sifting.cost.shapes import Shape, check_share, check_whole

# Logits that scoring holds at a time, and of how many rows at least; a test holds them equal to those in use.
CHUNK, ROWS = 2**23, 256


def update_bytes(
    shape: Shape, sequences: int, *, itemsize: int = 4, dropout: bool = False, frozen: int = 0
) -> float:
    """Memory that an update needs at its peak, beside the weights and the optimizer's state.

    >>> from sifting.cost import BERT_BASE
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
        frozen: first blocks in which nothing is trained: nothing is kept for their backward, and they
            have no gradients.
    """
    check_whole("sequences", sequences, 1)
    check_whole("itemsize", itemsize, 1)
    tokens = sequences * shape.length
    # inputs and outputs of each product and normalisation
    kept = 4 * shape.hidden + 2 * (shape.attention + shape.key_values)
    kept += (4 if shape.gated else 2) * shape.intermediate
    if dropout:
        kept += 2 * shape.hidden + 3 * shape.heads * shape.length
    around = (5 if shape.head == "mlm" else 2) * (shape.embedding or shape.hidden)
    begin = tokens * ((shape.layers - frozen) * kept + around + 4 * shape.vocab)
    end = shape.parameters - frozen * shape.block_weights + tokens * shape.vocab
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

    >>> from sifting.cost import BERT_BASE
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
        chunk: logits held at a time, where those of 256 rows are fewer.
        copies: tensors of that size at the peak; 2 for score="loss", 4 for "entropy".
    """
    check_whole("candidates", candidates, 1)
    check_whole("itemsize", itemsize, 1)
    check_whole("chunk", chunk, 1)
    check_whole("copies", copies, 1)
    check_share("labelled", labelled, zero=True)
    tokens = candidates * shape.length
    mlp = tokens * (2 * shape.hidden + (3 if shape.gated else 2) * shape.intermediate)
    rows = labelled * tokens
    logits = min(rows * shape.vocab, max(chunk, ROWS * shape.vocab))
    head = (tokens + rows) * shape.hidden + copies * logits
    return itemsize * float(max(mlp, head))
