"""Taking documents out of a packed batch and packing them again.

Shapes: B rows, T tokens in a row, N documents, K of them taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from sifting.data.documents import (
    CUMULATIVE,
    IGNORED,
    LONGEST,
    NUMBERS,
    POSITIONS,
    DocumentSpan,
    documents,
    rows_and_length,
)
from sifting.data.member import indivisible, own_size, pick
from sifting.data.tree import describe, is_array, is_leaf, leaves, rebuild


def take_documents(batch: Any, indices_K: Tensor) -> Any:
    """The batch with only the documents at `indices_K`, packed again in that order.

    >>> packed = {"labels": torch.tensor([[-100, 1, 2, -100, 4]]),
    ...           "position_ids": torch.tensor([[0, 1, 2, 0, 1]])}
    >>> take_documents(packed, torch.tensor([1]))
    {'labels': tensor([[-100,    4]]), 'position_ids': tensor([[0, 1]])}

    One row stays one row. Several are filled one after the other, none longer than before, and
    padded as collators do it: with labels of −100, positions that restart and a mask of 0.
    """
    found = unpack(batch)
    return pack(batch, [found[i] for i in indices_K.tolist()])


def unpack(batch: Any) -> list[dict[str, Any]]:
    """Each document's own part of a packed batch: what goes by token, and what goes by document.

    >>> unpack({"input_ids": torch.tensor([[5, 6, 7]]), "position_ids": torch.tensor([[0, 1, 0]]),
    ...         "labels": torch.tensor([[-100, 6, 7]])})[1]["input_ids"]
    tensor([7])
    """
    spans = documents(batch)
    assert spans is not None
    by_token, by_document, _ = _roles(batch, len(spans))
    masked = _masks_starts(batch, spans)
    found = []
    for number, (row, start, stop) in enumerate(spans):
        part = {name: batch[name][row, start:stop] for name in by_token}
        if masked:
            part["labels"] = part["labels"].clone()
            part["labels"][0] = IGNORED
        index = torch.tensor([number])
        found.append(part | {name: pick(batch[name], index) for name in by_document})
    return found


def pack(batch: Any, parts: Iterable[dict[str, Any]]) -> Any:
    """A batch like `batch` that holds other documents, given by `unpack`."""
    parts = list(parts)
    if not parts:
        raise ValueError("no documents to pack: take at least one")
    spans = documents(batch)
    assert spans is not None
    by_token, by_document, made = _roles(batch, len(spans))
    rows, capacity = rows_and_length(batch)
    lengths = [len(part[by_token[0]]) for part in parts]
    filled = [list(range(len(parts)))] if rows == 1 else _fill(lengths, capacity)
    fillings = {name: _filling(name, batch) for name in by_token}
    new: dict[Any, Any] = {}
    for name in by_token:
        parts_in_rows = [torch.cat([parts[i][name] for i in row]) for row in filled]
        new[name] = _padded(parts_in_rows, fillings[name])
    for name in by_document:
        new[name] = _joined([part[name] for part in parts])
    for name in made:
        new[name] = _remade(name, batch[name], lengths)
    if NUMBERS in by_token:
        new[NUMBERS] = _numbered([[lengths[i] for i in row] for row in filled]).to(batch[NUMBERS])
    by_path = {f"[{name!r}]": value for name, value in new.items()}
    return rebuild(batch, lambda member, path: by_path.get(path, member))


def _numbered(rows: list[list[int]]) -> Tensor:
    """The number of each token's document in its row; padding tokens are documents of their own.

    >>> _numbered([[2, 1], [1]])
    tensor([[0, 0, 1],
            [0, 1, 2]])
    """
    longest = max(map(sum, rows))
    filled = [torch.tensor(lengths + [1] * (longest - sum(lengths))) for lengths in rows]
    return torch.stack([torch.repeat_interleave(torch.arange(len(row)), row) for row in filled])


def _roles(batch: Mapping[Any, Any], count: int) -> tuple[list[Any], list[Any], list[Any]]:
    """Names of what goes by token, of what goes by document, and of what is counted again."""
    by_token, by_document, made = [], [], []
    shape = rows_and_length(batch)
    for name, value in batch.items():
        if name in CUMULATIVE or name in LONGEST:
            made.append(name)
        elif _goes_by_token(value, shape):
            by_token.append(name)
        elif _entries(value) == count and shape[0] != count:
            by_document.append(name)
        elif _may_hold_samples(value, shape[0], count):
            raise ValueError(
                f"the batch is packed ({count} documents in {shape[0]} row(s) of {shape[1]} tokens), and "
                f"{name!r} goes neither by token nor by document: {describe({name: value})}. Leave it "
                "out of the batch, or pass take=lambda batch, indices: … with batch_size="
            )
    return by_token, by_document, made


def _goes_by_token(value: Any, shape: tuple[int, int]) -> bool:
    # (B, T, T) has tokens along two dimensions: a mask of pairs
    return isinstance(value, Tensor) and value.shape[:2] == shape and value.shape[2:3] != shape[1:]


def _entries(value: Any) -> int | None:
    return len(value) if isinstance(value, list | tuple) else own_size(value)


def _may_hold_samples(value: Any, rows: int, count: int) -> bool:
    """Whether leaving a member as it is could leave it out of step with the documents."""
    if is_leaf(value):
        return own_size(value) is not None or indivisible(value, count) is not None
    arrays = any(own_size(leaf) is not None for leaf in leaves(value))
    return arrays or _entries(value) in (count, rows)


def _masks_starts(batch: Mapping[Any, Any], spans: list[DocumentSpan]) -> bool:
    """Whether no document's first token is predicted, which would be from the one before it."""
    labels = batch.get("labels")
    if not isinstance(labels, Tensor) or labels.shape != rows_and_length(batch):
        return False
    later = [span for span in spans if span.start > 0]
    return bool(later) and all(int(labels[span.row, span.start]) == IGNORED for span in later)


def _fill(lengths: list[int], capacity: int) -> list[list[int]]:
    """Documents in their order, a new row where the next does not fit.

    >>> _fill([3, 2, 4, 1], 5)
    [[0, 1], [2, 3]]
    """
    rows: list[list[int]] = [[]]
    room = capacity
    for number, length in enumerate(lengths):
        if length > room and rows[-1]:
            rows.append([])
            room = capacity
        rows[-1].append(number)
        room -= length
    return rows


def _filling(name: Any, batch: Mapping[Any, Any]) -> int:
    """What padding holds."""
    if "label" in str(name):
        return IGNORED
    if name == POSITIONS:
        return int(batch[POSITIONS].min())
    return 0


def _padded(rows: list[Tensor], value: int) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)


def _joined(parts: list[Any]) -> Any:
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    if isinstance(parts[0], list | tuple):
        return type(parts[0])(entry for part in parts for entry in part)
    import numpy as np

    return np.concatenate(parts)


def _remade(name: Any, old: Any, lengths: list[int]) -> Any:
    """Cumulative lengths, or the longest."""
    if name in CUMULATIVE:
        new = torch.tensor([0, *lengths]).cumsum(0)
        if isinstance(old, Tensor):
            return new.to(old)
        return new.numpy().astype(old.dtype) if is_array(old) else type(old)(new.tolist())
    return torch.tensor(max(lengths)).to(old) if isinstance(old, Tensor) else max(lengths)
