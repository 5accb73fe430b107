"""Several batches as one, padded to one length where they differ in it.

Shapes: B samples, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence, pack_sequence, unpack_sequence

from sifting.data.filling import Filling, mask_of
from sifting.data.member import put_together
from sifting.data.samples import Samples
from sifting.data.tree import children, is_array, is_graph, is_tensordict


def join(
    parts: Sequence[Any], *, filling: Filling | None = None, samples: Samples | None = None
) -> Any:
    """One batch of all the samples of several, in their order.

    >>> first = {"ids": torch.tensor([[5, 6, 0]]), "attention_mask": torch.tensor([[1, 1, 0]])}
    >>> second = {"ids": torch.tensor([[7]]), "attention_mask": torch.tensor([[1]])}
    >>> join([first, second])["ids"]
    tensor([[5, 6, 0],
            [7, 0, 0]])

    Args:
        parts: batches of the same structure.
        filling: what fills up shorter sequences; by default what the batches themselves have where
            their attention masks are 0, and −100 for labels.
        samples: how the batches divide into samples.
    """
    if len(parts) == 1:
        return parts[0]
    samples = Samples() if samples is None else samples
    if samples.take_with is not None:
        raise ValueError(
            "batches of an iterable are joined into the candidates of a step, and take= says how one is divided, "
            "not how two are joined: pass draws='batch', by which each batch is the candidates of its step, or "
            "give a DataLoader, whose collate_fn puts them together"
        )
    sizes = [samples.size(part) for part in parts]
    columns = [samples.columns(part, size=size) for part, size in zip(parts, sizes, strict=True)]
    if len({len(found) for found in columns}) > 1:
        raise ValueError(
            "batches that cannot be joined: one has "
            + ", another ".join(
                f"{len(found)} members with one entry per sample" for found in columns
            )
            + ". Yield batches of one structure, or pass draws='batch'"
        )
    if samples.documents(parts[0]) is None:
        _check_carried(
            [
                samples.with_columns(part, [None] * len(found), size=size)
                for part, found, size in zip(parts, columns, sizes, strict=True)
            ]
        )
    filling = Filling() if filling is None else filling
    masks = [mask_of(part) for part in parts]
    by_name = dict(zip(_names(parts[0], columns[0]), zip(*columns, strict=True), strict=True))
    _check_the_one(by_name, filling)
    joined = [_joined(name, column, masks, filling) for name, column in by_name.items()]
    return samples.with_columns(parts[0], joined, size=sizes[0])


def _check_carried(rests: Sequence[Any], path: str = "") -> None:
    """Raise where what goes along with all samples is not the same in batches that are to be one.

    Args:
        rests: the batches without their per-sample members.
        path: of these in the batch.
    """
    inside = [children(rest) for rest in rests]
    if inside[0] is not None:
        for step in inside[0]:
            _check_carried(
                [found[step] for found in inside if found and step in found], path + step
            )
        return
    first = rests[0]
    for other in rests[1:]:
        if other is first or not (is_array(first) or isinstance(first, int | float)):
            continue  # names and settings that no model computes with
        same = type(other) is type(first) and (
            first.shape == other.shape and bool((first == other).all())
            if is_array(first)
            else first == other
        )
        if not same:
            shown = [str(tuple(one.shape)) if is_array(one) else repr(one) for one in rests]
            raise ValueError(
                f"batches that cannot be joined: batch{path} does not go by sample, and is not the same in them "
                f"({' and '.join(dict.fromkeys(shown))}). Keep it out of the batch, let it have one entry per "
                "sample, or pass draws='batch'"
            )


def named_members(batch: Any, samples: Samples, *, size: int) -> dict[str, Any]:
    """The per-sample members of a batch, by the names that `pad=` has for them."""
    if samples.take_with is not None:
        return {}
    columns = samples.columns(batch, size=size)
    return dict(zip(_names(batch, columns), columns, strict=True))


def _names(batch: Any, columns: Sequence[Any]) -> list[str]:
    """Keys, where the batch has them; one tensor may stand under two (labels that are the inputs)."""
    left = list(batch.items()) if isinstance(batch, Mapping) else []
    names = []
    for place, column in enumerate(columns):
        at = next((i for i, (_, value) in enumerate(left) if value is column), None)
        names.append(f"member {place}" if at is None else str(left.pop(at)[0]))
    return names


def _check_the_one(by_name: Mapping[str, Sequence[Any]], filling: Filling) -> None:
    """Raise where a single `pad=` would fill up several members, of which one may be labels."""
    several = [
        name
        for name, column in by_name.items()
        if all(isinstance(part, Tensor) and part.ndim > 1 for part in column)
        and len({part.shape[1] for part in column}) > 1
        and filling.takes_the_one(name, column[0])
    ]
    if len(several) > 1:
        raise ValueError(
            f"pad={filling.pad!r} would fill up {', '.join(several)} alike, and what fills up inputs is no "
            f"label: pass a value for each, pad={{{', '.join(f'{name!r}: …' for name in several)}}}"
        )


def _joined(name: str, column: Sequence[Any], masks: list[Tensor | None], filling: Filling) -> Any:
    first = column[0]
    if len({type(part) for part in column}) > 1:
        kinds = ", ".join(sorted({type(part).__name__ for part in column}))
        raise ValueError(f"batches that cannot be joined: {name} is a {kinds}")
    if isinstance(first, PackedSequence):
        sequences = [one for part in column for one in unpack_sequence(part)]
        return pack_sequence(sequences, enforce_sorted=False)
    if isinstance(first, list | tuple):
        return type(first)(entry for part in column for entry in part)
    if is_graph(first):
        return put_together(column)
    if is_tensordict(first):
        return torch.cat(list(column))
    if not isinstance(first, Tensor):
        import numpy  # in use already, since the batch holds an array

        return numpy.concatenate(column)
    if first.is_nested:
        entries = [entry for part in column for entry in part.unbind()]
        return torch.nested.as_nested_tensor(entries, layout=first.layout)
    shapes = {tuple(part.shape[1:]) for part in column}
    if len(shapes) > 1:
        column = _filled_up(name, column, masks, filling)
    return torch.cat(list(column))


def _filled_up(
    name: str, column: Sequence[Tensor], masks: list[Tensor | None], filling: Filling
) -> list[Tensor]:
    """Tensors of different lengths made equally long."""
    if len({part.ndim for part in column}) > 1 or len({part.shape[2:] for part in column}) > 1:
        shapes = " and ".join(str(tuple(part.shape)) for part in column)
        raise ValueError(
            f"batches that cannot be joined: {name} is of shape {shapes}, which padding one dimension does "
            "not make alike: let the collate function make them of one shape, or pass draws='batch'"
        )
    value = filling.value(name, column, masks)
    longest = max(part.shape[1] for part in column)
    tail = [0, 0] * (column[0].ndim - 2)
    return [F.pad(part, [*tail, 0, longest - part.shape[1]], value=value) for part in column]
