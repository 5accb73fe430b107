"""How long each sample of a batch is, in tokens; and batches cut to their longest.

Shapes: B samples, T tokens in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from sifting.data.documents import IGNORED, document_of_position, documents
from sifting.data.tree import rebuild

T = TypeVar("T")
# Members with an entry for each token: what may be cut where all of a column is padding.
BY_TOKEN = frozenset(
    {"input_ids", "attention_mask", "token_type_ids", "position_ids", "labels", "inputs_embeds"}
    | {"special_tokens_mask", "assistant_masks", "completion_mask", "loss_mask"}
)
ROUND = 8  # columns that lengths stay a multiple of, where they were


def token_counts(batch: Any) -> Tensor | None:
    """Tokens of each sample, padding not counted; None where the batch has none.

    >>> token_counts({"input_ids": torch.zeros(2, 3).long(),
    ...               "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]])})
    tensor([3, 1])
    >>> token_counts((torch.zeros(2, 8, 8), torch.zeros(2)))   # images

    Of a packed batch, those of each document; of samples with several rows each (pairs, choices), those of
    all its rows. Without an attention mask padding cannot be determined, and
    every row has all of its tokens.
    """
    spans = documents(batch) if isinstance(batch, Mapping) else None
    if spans is not None:
        return torch.tensor([span.stop - span.start for span in spans])
    inputs = batch[0] if isinstance(batch, list | tuple) and batch else batch
    if isinstance(inputs, Mapping):
        mask = inputs.get("attention_mask")
        inputs = inputs.get("input_ids", inputs.get("inputs_embeds"))
        several = _has_several_rows(inputs)
        if isinstance(mask, Tensor) and (
            mask.ndim == 2 or (several and mask.shape == inputs.shape)
        ):
            return mask.bool().flatten(1).sum(dim=1).cpu()
        if several:
            return torch.full(inputs.shape[:1], inputs[0].numel())
        embedded = isinstance(inputs, Tensor) and inputs.ndim == 3
    else:
        embedded = False
    if not isinstance(inputs, Tensor) or inputs.is_nested:
        return None
    if embedded or (inputs.ndim == 2 and not inputs.is_floating_point()):
        return torch.full(inputs.shape[:1], inputs.shape[1])
    return None


def _has_several_rows(inputs: Any) -> bool:
    """Whether each sample has several rows of tokens: a pair, or the choices of a question."""
    return isinstance(inputs, Tensor) and inputs.ndim == 3 and not inputs.is_floating_point()


def labelled_counts(batch: Any, labels: Tensor | None, size: int) -> Tensor | None:
    """Tokens of each sample that have a label; None where labels do not go by token.

    >>> labelled_counts(None, torch.tensor([[-100, 5, 6], [-100, -100, 7]]), 2)
    tensor([2, 1])
    """
    if labels is None or labels.ndim != 2 or labels.is_floating_point():
        return None
    counted_BT = (labels != IGNORED).cpu()
    if isinstance(batch, Mapping) and documents(batch) is not None:
        numbers_BT = document_of_position(batch).cpu()
        if numbers_BT.shape != counted_BT.shape:
            return None
        mine = numbers_BT[counted_BT & (numbers_BT >= 0)]
        return torch.bincount(mine, minlength=size)
    return counted_BT.sum(dim=1) if len(counted_BT) == size else None


def without_padding(batch: T) -> T:
    """A batch without the columns at its end in which every sample is padded.

    >>> without_padding({"input_ids": torch.tensor([[5, 6, 0, 0]]),
    ...                  "attention_mask": torch.tensor([[1, 1, 0, 0]])})["input_ids"]
    tensor([[5, 6]])

    Only what is known to go by token is cut; where another member might, nothing is. Padding on
    the left stays: positions are counted from there.
    """
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if not isinstance(mask, Tensor) or mask.ndim != 2 or documents(batch) is not None:
        return batch
    length = mask.shape[1]
    used = mask.bool().any(dim=0).nonzero().squeeze(1)
    if not len(used):
        return batch
    stop = int(used[-1]) + 1
    if length % ROUND == 0:  # collators pad to multiples for the hardware's sake
        stop = -(-stop // ROUND) * ROUND
    if stop == length:
        return batch
    assert isinstance(batch, Mapping)
    for name, value in batch.items():
        if name not in BY_TOKEN and isinstance(value, Tensor) and length in value.shape[1:]:
            return batch
        if name in BY_TOKEN and (not isinstance(value, Tensor) or value.shape[:2] != mask.shape):
            return batch

    def cut(member: Any, path: str) -> Any:
        name = path[2:-2] if path.startswith("['") else ""
        return member[:, :stop] if name in BY_TOKEN else member

    return rebuild(batch, cut)  # type: ignore[no-any-return]
