"""Packed batches: where in a row each document is, which is a sample of its own.

Collators without padding (transformers' `DataCollatorWithFlattening`, TRL's `padding_free` and
best-fit packing) lay documents end to end and mark where each starts: position ids that begin
again, cumulative lengths (`cu_seq_lens_q`), or the number of the document at each token (`seq_idx`).

Shapes: B rows, T tokens in a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sifting.data.tree import describe

CUMULATIVE = ("cu_seq_lens_q", "cu_seq_lens_k", "cu_seq_lens", "cu_seqlens")
LONGEST = ("max_length_q", "max_length_k", "max_seqlen")
NUMBERS = "seq_idx"
POSITIONS = "position_ids"
IGNORED = -100
REMEDY = (
    "let the collator mark where each document starts (position_ids that restart), or pass "
    "take=lambda batch, indices: … with batch_size="
)


def nothing_to_choose(
    batch: Any, size: int, *, drawn: int | None = None, remedy: str = ""
) -> ValueError:
    """What a batch of one candidate raises; a row of tokens may be documents that nobody marked.

    >>> print(nothing_to_choose((torch.zeros(1, 3), torch.zeros(1)), 1))
    a candidate batch of 1 leaves nothing to choose from: let the loader yield 1/keep times the batch you train on

    Args:
        batch: the candidates.
        size: how many there are.
        drawn: of how many samples that were drawn by index they are made; None where they were not.
        remedy: a further one.
    """
    if drawn is None:
        said = (
            f"a candidate batch of {size} leaves nothing to choose from: let the loader yield 1/keep times "
            f"the batch you train on{remedy}"
        )
    else:
        said = (
            f"the collate function makes {size} sample of the {drawn} candidates that were drawn "
            f"({describe(batch)}), which leaves nothing to choose from: let it give each an entry, or say how "
            "many samples there are with batch_size= and how to take some with take=lambda batch, indices: …"
        )
    members = batch.values() if isinstance(batch, Mapping) else ()
    if any(_is_row_of_tokens(member) for member in members):
        said += f". If its row is several documents one after the other, {REMEDY}"
    return ValueError(said)


def _is_row_of_tokens(member: Any) -> bool:
    whole = isinstance(member, Tensor) and not member.is_floating_point()
    return whole and member.ndim == 2 and member.shape[0] == 1 and member.shape[1] > 1


class DocumentSpan(NamedTuple):
    """Where a document is: its row, its first token and the token after its last."""

    row: int
    start: int
    stop: int


def documents(batch: Any) -> list[DocumentSpan] | None:
    """The documents of a packed batch, row by row; None where rows are samples as ever.

    >>> documents({"input_ids": torch.arange(5)[None], "position_ids": torch.tensor([[0, 1, 2, 0, 1]])})
    [DocumentSpan(row=0, start=0, stop=3), DocumentSpan(row=0, start=3, stop=5)]
    >>> documents({"input_ids": torch.zeros(2, 3), "position_ids": torch.arange(3).expand(2, 3)})

    A document of one token at the end of a row, with no label, is padding: collators pad so, and
    there is nothing to learn from it.
    """
    if not isinstance(batch, Mapping):
        _refuse_pairs(batch)
        return None
    if not any(name in batch for name in (POSITIONS, NUMBERS, *CUMULATIVE)):
        return None
    starts_BT = _starts(batch)
    if starts_BT is None:
        return None
    spans = _spans(starts_BT, _valid(batch, starts_BT), batch)
    plain = [span.row for span in spans] == list(range(len(starts_BT)))  # a document in each row
    return None if plain and not any(name in batch for name in CUMULATIVE) else spans


def document_of_position(batch: Any) -> Tensor:
    """The number of the document that each token belongs to; −1 for padding.

    >>> document_of_position({"position_ids": torch.tensor([[0, 1, 2, 0, 1]])})
    tensor([[0, 0, 0, 1, 1]])
    """
    spans = documents(batch)
    if spans is None:
        raise ValueError(f"the batch is not packed: {describe(batch)}. Its rows are the samples")
    rows, length = rows_and_length(batch)
    numbers_BT = torch.full((rows, length), -1)
    for number, span in enumerate(spans):
        numbers_BT[span.row, span.start : span.stop] = number
    return numbers_BT.to(tokens(batch).device)


def tokens(batch: Mapping[Any, Any]) -> Tensor:
    """A member that has an entry for each token."""
    for name in ("input_ids", "inputs_embeds", "labels", POSITIONS, NUMBERS):
        value = batch.get(name)
        if isinstance(value, Tensor) and value.ndim >= 2:
            return value
    raise ValueError(
        f"a packed batch without tokens: {describe(batch)}. Its cumulative lengths say where documents "
        f"are, but no member has a row of tokens; {REMEDY}"
    )


def rows_and_length(batch: Mapping[Any, Any]) -> tuple[int, int]:
    rows, length = tokens(batch).shape[:2]
    return int(rows), int(length)


def _starts(batch: Mapping[Any, Any]) -> Tensor | None:
    """Where documents start, by every mark that the batch has; None where it has none of use."""
    found: dict[str, Tensor] = {}
    for name in CUMULATIVE:
        if name in batch and batch[name] is not None:
            found[name] = _from_cumulative(name, batch)
    positions = batch.get(POSITIONS)
    if (
        isinstance(positions, Tensor)
        and positions.ndim == 2
        and positions.shape == rows_and_length(batch)
    ):
        starts = _from_positions(positions, batch, sure=bool(found))
        if starts is not None:
            found[POSITIONS] = starts
    numbers = batch.get(NUMBERS)
    if (
        isinstance(numbers, Tensor)
        and numbers.ndim == 2
        and numbers.shape == rows_and_length(batch)
    ):
        found[NUMBERS] = _first(numbers.diff(dim=1) != 0)
    if not found:
        return None
    (name, starts), *others = found.items()
    for other, theirs in others:
        if not torch.equal(starts.cpu(), theirs.cpu()):
            raise ValueError(
                f"the batch is packed, but {name} and {other} do not agree on where its documents start, "
                f"so the packing cannot be undone: {REMEDY}"
            )
    return starts


def _first(changes: Tensor) -> Tensor:
    return torch.cat([torch.ones_like(changes[:, :1]), changes], dim=1)


def _from_cumulative(name: str, batch: Mapping[Any, Any]) -> Tensor:
    ends = torch.as_tensor(batch[name]).flatten().long().cpu()
    rows, length = rows_and_length(batch)
    whole = len(ends) > 1 and int(ends[0]) == 0 and int(ends[-1]) == length
    if rows != 1 or not whole or not bool((ends.diff() > 0).all()):
        raise ValueError(
            f"{name} ({ends[:4].tolist()}… up to {ends[-1:].tolist()}) does not divide "
            f"{rows} row(s) of {length} tokens into documents, so the packing cannot be undone: {REMEDY}"
        )
    starts = torch.zeros(1, length, dtype=torch.bool)
    starts[0, ends[:-1]] = True
    return starts


def _from_positions(positions: Tensor, batch: Mapping[Any, Any], *, sure: bool) -> Tensor | None:
    jumps_BT = _first(positions.diff(dim=1) != 1)
    valid_BT = _mask(batch, positions)
    if valid_BT is not None:
        # only what follows a token counts: after padding, every row begins
        before = torch.cat([torch.zeros_like(valid_BT[:, :1]), valid_BT[:, :-1]], dim=1)
        jumps_BT = torch.where(valid_BT, jumps_BT | ~before, False)
    first_BT = jumps_BT.cumsum(1) == 1
    first = positions[first_BT & jumps_BT]
    if not len(first):
        return None
    again = jumps_BT & ~first_BT
    falls = again & _falls(positions)
    start = int(torch.cat([first, positions[falls]]).min())
    restarts = again & (positions == start)
    if not sure and not bool((restarts | falls).any()):
        return None
    if bool((first != start).any()) or bool((again & ~restarts).any()):
        row, token = (jumps_BT & (positions != start)).nonzero()[0].tolist()
        raise ValueError(
            f"position_ids restart in the middle of rows, but row {row} has a document that starts at "
            f"position {int(positions[row, token])} instead of {start}: it was cut by the packing, which "
            f"cannot be undone. {REMEDY[0].upper()}{REMEDY[1:]}"
        )
    return jumps_BT


def _falls(positions: Tensor) -> Tensor:
    """Where positions go back and then count on: a document, though it may not be a whole one."""
    steps = positions.diff(dim=1)
    back_BT = torch.cat([torch.zeros_like(steps[:, :1]), steps], dim=1) < 0
    return back_BT & torch.cat([steps == 1, torch.zeros_like(back_BT[:, :1])], dim=1)


def _mask(batch: Mapping[Any, Any], like: Tensor) -> Tensor | None:
    mask = batch.get("attention_mask")
    if not isinstance(mask, Tensor) or mask.shape != like.shape:
        return None
    return mask.bool().to(like.device)


def _valid(batch: Mapping[Any, Any], starts_BT: Tensor) -> Tensor:
    mask = _mask(batch, starts_BT)
    return torch.ones_like(starts_BT) if mask is None else mask


def _spans(starts_BT: Tensor, valid_BT: Tensor, batch: Mapping[Any, Any]) -> list[DocumentSpan]:
    masked = _mask(batch, starts_BT) is not None
    labels = batch.get("labels")
    if not isinstance(labels, Tensor) or labels.shape[:2] != starts_BT.shape:
        labels = None
    length = starts_BT.shape[1]
    spans: list[DocumentSpan] = []
    for row, (starts_T, valid_T) in enumerate(zip(starts_BT.cpu(), valid_BT.cpu(), strict=True)):
        begins = (starts_T & valid_T).nonzero().squeeze(1).tolist()
        if not begins:
            continue
        stop = int(valid_T.nonzero()[-1]) + 1 if masked else length
        if bool((~valid_T[begins[0] : stop]).any()):
            raise ValueError(
                f"row {row} of the packed batch has padding between its documents, which cannot be packed "
                f"again: {REMEDY}"
            )
        ends = [*begins[1:], stop]
        found = [DocumentSpan(row, start, end) for start, end in zip(begins, ends, strict=True)]
        while not masked and found and found[-1].stop - found[-1].start == 1:
            unlabelled = labels is None or bool((labels[row, found[-1].start] == IGNORED).all())
            if not unlabelled:
                break
            found.pop()
        spans += found
    return spans


def _refuse_pairs(batch: Any) -> None:
    """A packed dict beside labels of its own would be divided by rows."""
    if not isinstance(batch, list | tuple) or len(batch) != 2 or not isinstance(batch[0], Mapping):
        return
    if batch[0] is not batch[1] and documents(batch[0]) is not None:
        raise ValueError(
            "the inputs are packed, and their labels are a separate member: yield one dict with 'labels' in "
            "it, or pass take=lambda batch, indices: … with batch_size="
        )
