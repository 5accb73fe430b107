"""Batches by their structure alone: the size that most members share, and dividing by it.

`sifting.data.samples.Samples` knows the labels too and refuses what is ambiguous.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from sifting.data.member import pick
from sifting.data.tree import is_array, leading, leaves, members, rebuild, shallow_copy, to_device

__all__ = [
    "batch_size",
    "columns",
    "pick",
    "shallow_copy",
    "split",
    "take",
    "to_device",
    "with_columns",
]

T = TypeVar("T")


def batch_size(batch: Any) -> int:
    """Number of samples in a batch: the leading size that most of its tensors share.

    >>> batch_size({"input_ids": torch.zeros(4, 7), "labels": torch.zeros(4)})
    4

    A tie goes to the size seen first. A list of dicts, as detectors have for targets, has one
    entry a sample and decides. A batch without tensors is measured by its lists.
    """
    sizes = [len(node) for node in _lists(batch) if _one_each(node)]
    if not sizes:
        arrays = (leaf for leaf in leaves(batch) if is_array(leaf) and leaf.ndim > 0)
        sizes = [leading(leaf) for leaf in arrays]
    if not sizes:
        sizes = [len(node) for node in _lists(batch) if not any(map(members, node))]
    if not sizes:
        raise ValueError(
            f"cannot tell how many samples a {type(batch).__name__} holds: it has no tensor with a "
            "leading batch dimension and no list. Yield tensors, or a dict, tuple or dataclass of them."
        )
    return Counter(sizes).most_common(1)[0][0]


def take(batch: T, indices_K: Tensor, *, size: int | None = None) -> T:
    """The same batch with only the samples at `indices_K`, type and keys unchanged.

    >>> take((torch.arange(4), ["a", "b", "c", "d"], "train"), torch.tensor([1, 3]))
    (tensor([1, 3]), ['b', 'd'], 'train')

    Args:
        batch: any batch; it is not modified.
        indices_K: which samples, in the order wanted.
        size: the batch's size, where the caller knows it already.
    """
    size = batch_size(batch) if size is None else size
    return _replace(batch, size, lambda column: pick(column, indices_K))  # type: ignore[no-any-return]


def columns(batch: Any, size: int) -> list[Any]:
    """The members of a batch that go by sample, in the order of the tree.

    >>> columns({"x": torch.zeros(2, 3), "names": ["a", "b"], "split": "train"}, 2)[1]
    ['a', 'b']
    """
    found: list[Any] = []

    def note(column: Any) -> Any:
        found.append(column)
        return column

    _replace(batch, size, note)
    return found


def with_columns(batch: T, size: int, new: Iterable[Any]) -> T:
    """The same batch with other per-sample members, in the order of `columns`.

    >>> with_columns((torch.zeros(2), ["a", "b"]), 2, [torch.ones(1), ["c"]])
    (tensor([1.]), ['c'])
    """
    source = iter(new)
    return _replace(batch, size, lambda _: next(source))  # type: ignore[no-any-return]


def split(batch: T, count: int) -> list[T]:
    """Cut a batch into consecutive pieces of `count` samples; the last may be smaller.

    >>> split(torch.arange(5), 2)
    [tensor([0, 1]), tensor([2, 3]), tensor([4])]

    A batch that fits in one piece is returned as it is, the same object.
    """
    if count < 1:
        raise ValueError(f"count={count}: a piece must hold at least 1 sample")
    size = batch_size(batch)
    if size <= count:
        return [batch]
    return [
        take(batch, torch.arange(start, min(start + count, size)), size=size)
        for start in range(0, size, count)
    ]


def _lists(node: Any) -> Iterator[list[Any]]:
    if isinstance(node, list):
        yield node
    for child in members(node):
        yield from _lists(child)


def _one_each(node: list[Any]) -> bool:
    """A list of dicts: one a sample, whatever tensors are in them."""
    return len(node) > 0 and all(isinstance(member, Mapping) for member in node)


def _is_batched(node: Any, size: int) -> bool:
    """Whether a member goes by sample as a whole: an array of that size, or a list of entries."""
    if is_array(node):
        return bool(node.ndim > 0 and leading(node) == size)
    if isinstance(node, list | tuple) and not any(is_array(leaf) for leaf in leaves(node)):
        return len(node) == size
    return any(_is_batched(child, size) for child in members(node))


def _has_entries(node: Sequence[Any], size: int) -> bool:
    """Whether a list holds one entry a sample, rather than being part of the batch's structure."""
    if len(node) != size:
        return False
    if isinstance(node, list) and _one_each(node):
        return True
    batched = [_is_batched(member, size) for member in node]
    if not any(batched):
        return True
    # tensors of differing leading sizes (boxes) of which some happen to be as many as samples
    alike = all(is_array(member) for member in node) and (
        len({(member.ndim, tuple(member.shape[1:])) for member in node}) == 1
    )
    return alike and not all(batched)


def _replace(node: Any, size: int, change: Callable[[Any], Any]) -> Any:
    """The tree with every per-sample member passed through `change`."""
    if is_array(node):
        return change(node) if node.ndim and leading(node) == size else node
    if isinstance(node, list | tuple) and _has_entries(node, size):
        return change(node)
    new = rebuild(node, lambda child, _: _replace(child, size, change))
    encodings = getattr(new, "_encodings", None)  # BatchEncoding: one a sample, beside its items
    if encodings is not None and new is not node and len(encodings) == size:
        new._encodings = change(encodings)
    return new
