"""Batches of any shape: how many samples one holds, and taking some of them.

A batch is a tree: tensors and arrays at the leaves, in dicts, tuples, lists, named tuples,
dataclasses or mapping classes such as `BatchEncoding`. What is per-sample follows the
selection; everything else is carried along untouched.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

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
        arrays = (leaf for leaf in _leaves(batch) if _is_array(leaf) and leaf.ndim > 0)
        sizes = [_leading(leaf) for leaf in arrays]
    if not sizes:
        sizes = [len(node) for node in _lists(batch) if not any(map(_children, node))]
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


def shallow_copy(batch: T) -> T:
    """The same members in a container of their own, which stays whole if the other is emptied.

    >>> batch = {"x": torch.zeros(2)}
    >>> kept = shallow_copy(batch)
    >>> _ = batch.pop("x")
    >>> list(kept)
    ['x']

    So do the containers inside.
    """
    return _rebuild(batch, shallow_copy)  # type: ignore[no-any-return]


def to_device(batch: T, device: torch.device) -> T:
    """The batch with its tensors on `device`; itself where they are there already."""
    if all(leaf.device == device for leaf in _leaves(batch) if isinstance(leaf, Tensor)):
        return batch
    return _map_tensors(batch, device)  # type: ignore[no-any-return]


def _is_array(node: Any) -> bool:
    return isinstance(node, Tensor) or (type(node).__module__ == "numpy" and hasattr(node, "shape"))


def _is_dataclass(node: Any) -> bool:
    return dataclasses.is_dataclass(node) and not isinstance(node, type | Mapping)


def _children(node: Any) -> list[Any] | None:
    """The members of a container, or None for a leaf."""
    if isinstance(node, Mapping):
        return list(node.values())
    if _is_dataclass(node):
        return [getattr(node, field.name) for field in dataclasses.fields(node)]
    if isinstance(node, list | tuple):
        return list(node)
    return None


def _leaves(node: Any) -> Iterator[Any]:
    children = _children(node)
    if children is None:
        yield node
    else:
        for child in children:
            yield from _leaves(child)


def _lists(node: Any) -> Iterator[list[Any]]:
    if isinstance(node, list):
        yield node
    for child in _children(node) or ():
        yield from _lists(child)


def _one_each(node: list[Any]) -> bool:
    """A list of dicts: one a sample, whatever tensors are in them."""
    return len(node) > 0 and all(isinstance(member, Mapping) for member in node)


def _leading(array: Any) -> int:
    return int(array.size(0)) if isinstance(array, Tensor) else int(array.shape[0])


def _is_batched(node: Any, size: int) -> bool:
    """Whether a member goes by sample as a whole: an array of that size, or a list of entries."""
    if _is_array(node):
        return bool(node.ndim > 0 and _leading(node) == size)
    if isinstance(node, list | tuple) and not any(_is_array(leaf) for leaf in _leaves(node)):
        return len(node) == size
    return any(_is_batched(child, size) for child in _children(node) or ())


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
    alike = all(_is_array(member) for member in node) and (
        len({(member.ndim, tuple(member.shape[1:])) for member in node}) == 1
    )
    return alike and not all(batched)


def pick(column: Any, indices_K: Tensor) -> Any:
    """Some samples of a per-sample member."""
    if isinstance(column, Tensor):
        if column.is_nested:
            parts = column.unbind()
            chosen = [parts[i] for i in indices_K.tolist()]
            return torch.nested.as_nested_tensor(chosen, layout=column.layout)
        return column.index_select(0, indices_K.to(column.device))
    if _is_array(column):
        return column[indices_K.cpu().numpy()]
    entries = [column[i] for i in indices_K.tolist()]
    return entries if isinstance(column, list) else tuple(entries)


def _replace(node: Any, size: int, change: Callable[[Any], Any]) -> Any:
    """The tree with every per-sample member passed through `change`."""
    if _is_array(node):
        return change(node) if node.ndim and _leading(node) == size else node
    if isinstance(node, list | tuple) and _has_entries(node, size):
        return change(node)
    return _rebuild(node, lambda child: _replace(child, size, change), entries=change, size=size)


def _map_tensors(node: Any, device: torch.device) -> Any:
    if isinstance(node, Tensor):
        return node.to(device, non_blocking=True)
    return _rebuild(node, lambda child: _map_tensors(child, device))


def _rebuild(
    node: Any,
    change: Callable[[Any], Any],
    *,
    entries: Callable[[Any], Any] | None = None,
    size: int = 0,
) -> Any:
    """A container of the same type with every member passed through `change`.

    What a container holds beside its members, one entry a sample, goes through `entries`.
    """
    if isinstance(node, Mapping):
        return _rebuild_mapping(node, change, entries, size)
    if _is_dataclass(node):
        clone = copy.copy(node)
        for field in dataclasses.fields(node):
            # past frozen=True, and without running __post_init__ on a part of the batch
            object.__setattr__(clone, field.name, change(getattr(node, field.name)))
        return clone
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return type(node)(*(change(child) for child in node))
    if isinstance(node, list | tuple):
        return type(node)([change(child) for child in node])
    return node


def _rebuild_mapping(
    node: Mapping[Any, Any],
    change: Callable[[Any], Any],
    entries: Callable[[Any], Any] | None,
    size: int,
) -> Any:
    changed = {key: change(value) for key, value in node.items()}
    if type(node) is dict:
        return changed
    clone: Any = copy.copy(node)
    if hasattr(clone, "data") and isinstance(clone.data, dict):  # UserDict, BatchEncoding
        clone.data = changed
        encodings = getattr(node, "_encodings", None)
        if entries is not None and encodings is not None and len(encodings) == size:
            clone._encodings = entries(encodings)
        return clone
    if isinstance(clone, MutableMapping):
        for key, value in changed.items():
            clone[key] = value
        return clone
    return type(node)(changed)  # type: ignore[call-arg]
