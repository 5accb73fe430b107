"""How many samples a batch holds, read from its labels or else from its structure alone.

A list or tuple can be read in two ways: as members of the batch, each with all samples
(`[images, labels]`), or as one entry per sample (`[sample, sample, …]`). Where both readings fit and
give different sizes, the batch is ambiguous and nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from sifting.data.member import own_size
from sifting.data.tree import is_array, is_dataclass, is_graph, is_leaf, leading, leaves, members

EXACT = ("labels", "label", "targets", "target")


def size_of_labels(labels: Mapping[str, Any]) -> set[int]:
    """The sizes that labels have, more than one where they do not agree.

    >>> import torch
    >>> size_of_labels({"labels": torch.zeros(4, 7), "next_sentence_label": torch.zeros(4)})
    {4}

    A tensor counts by its first dimension, a list or tuple by its entries. Where several disagree,
    those named just "labels" or "targets" decide.
    """
    sizes = {name: size for name, value in labels.items() if (size := _entries(value)) is not None}
    found = set(sizes.values())
    if len(found) > 1:
        found = {size for name, size in sizes.items() if name in EXACT} or found
    return found


def _entries(value: Any) -> int | None:
    if isinstance(value, Tensor):
        return leading(value) if value.ndim else None
    if isinstance(value, PackedSequence):
        return own_size(value)
    return len(value) if isinstance(value, list | tuple) else own_size(value)


def raw_samples(batch: Any) -> bool:
    """Whether a batch is a list of samples as the data set gives them (`collate_fn=list`).

    >>> import torch
    >>> raw_samples([(torch.zeros(8), 3), (torch.ones(8), 1)])
    True
    >>> raw_samples([torch.zeros(2, 8), torch.zeros(2)])
    False

    They are all built alike, and either each has a number or text of its own somewhere, such as its
    label, or their tensors have sizes that no batch could have.
    """
    if not _plain(batch) or not batch or is_array(batch[0]) or not alike(batch):
        return False
    if not _container(batch[0]):
        return False
    return has_scalars(batch) or _meet(batch) == set()


def sizes_of_structure(batch: Any) -> set[int]:
    """The sizes that the structure of a batch allows; more than one where it is ambiguous.

    >>> import torch
    >>> sizes_of_structure({"x": torch.zeros(4, 8), "names": ["a", "b"]})
    {4}
    >>> sorted(sizes_of_structure([torch.zeros(4, 8), torch.zeros(4, 8), torch.zeros(4, 8)]))
    [3, 4]

    Tensors decide; lists of numbers or text only where tensors leave a choice, or there are none.
    """
    if _plain(batch) and len(batch) == 1 and is_array(batch[0]):
        batch = batch[0]  # what a TensorDataset of one tensor gives
    found = possible(batch)
    lists = _list_sizes(batch)
    if found is None:
        return lists
    if not found:  # members of different sizes
        return {size for leaf in leaves(batch) if (size := own_size(leaf)) is not None}
    return found & lists or found


def possible(node: Any) -> set[int] | None:
    """The sizes that fit every tensor in a node, by one reading or another; None where it has none."""
    if is_leaf(node) or is_graph(node):
        size = own_size(node)
        return None if size is None else {size}
    inside = _meet(node)
    if inside is None or not _plain(node) or not alike(node) or _batches_of_their_own(node):
        return inside
    if has_scalars(node):
        return {len(node)}
    if not inside and is_array(node[0]):
        inside = {leading(array) for array in node if array is not None}  # any may hold all samples
    return inside | {len(node)}


def _batches_of_their_own(entries: Any) -> bool:
    """Whether entries are packed sequences or batches of graphs: each holds samples, and is none."""
    return all(
        isinstance(entry, PackedSequence) or (is_graph(entry) and own_size(entry) is not None)
        for entry in entries
    )


def _meet(node: Any) -> set[int] | None:
    found: set[int] | None = None
    for child in members(node):
        sizes = possible(child)
        if sizes is not None:
            found = sizes if found is None else found & sizes
    return found


def _list_sizes(node: Any) -> set[int]:
    """Sizes of the outermost lists that hold numbers and text only."""
    if _plain(node) and node and not any(_worth(leaf) for leaf in leaves(node)):
        own = {len(node)} if alike(node) else set()
        inner = [_list_sizes(child) for child in node if _plain(child)]
        # lists in a list are entries of one sample each, or a member each
        same = set.intersection(*inner) if inner and len(inner) == len(node) else set()
        return own | same
    found: set[int] = set()
    if not _plain(node) or not alike(node):  # else its lists may be those of single samples
        for child in members(node):
            found |= _list_sizes(child)
    return found


def _worth(leaf: Any) -> bool:
    return own_size(leaf) is not None or (is_array(leaf) and leaf.ndim > 0)


def alike(entries: Iterable[Any]) -> bool:
    """Whether entries are of one kind, as samples of one data set are.

    >>> alike(["a", "b", None]), alike([{"x": 1}, {"x": 2}]), alike([{"x": 1}, {"labels": 2}])
    (True, True, False)
    """
    kinds = {_kind(entry) for entry in entries if entry is not None}
    return len(kinds) == 1


def has_scalars(entries: Any) -> bool:
    """Whether containers that are built alike all have a number or text at one place.

    A list of nothing but text may as well be a column of texts, one per sample.
    """
    if not all(_container(entry) and not (_plain(entry) and alike(entry)) for entry in entries):
        return False
    columns = zip(*(_values(entry) for entry in entries), strict=False)
    return any(all(_scalar(value) for value in column) for column in columns)


def _values(entry: Any) -> list[Any]:
    """Members in an order that does not depend on how a mapping was filled."""
    if isinstance(entry, Mapping):
        return [entry[key] for key in sorted(entry, key=repr)]
    return members(entry)


def _scalar(value: Any) -> bool:
    return isinstance(value, str | int | float) or (is_array(value) and value.ndim == 0)


def _container(node: Any) -> bool:
    return not is_leaf(node)


def _plain(node: Any) -> bool:
    """A list or tuple whose length is not part of its type."""
    return (
        isinstance(node, list | tuple)
        and not hasattr(node, "_fields")
        and not isinstance(node, PackedSequence)
    )


def _kind(entry: Any) -> Any:
    if is_array(entry):
        return "array", entry.ndim, str(entry.dtype)
    if isinstance(entry, Mapping):
        return "mapping", frozenset(map(repr, entry))
    if is_dataclass(entry) or hasattr(entry, "_fields"):
        return type(entry)
    if isinstance(entry, list | tuple):
        kinds = [_kind(member) for member in entry if member is not None]
        return ("list", *set(kinds)) if len(set(kinds)) < 2 else ("members", *kinds)
    if isinstance(entry, bool | int | float):
        return "number"
    return type(entry)
