"""Batches as trees: tensors and arrays at the leaves, in containers of any common kind.

A container is a dict or another mapping (`BatchEncoding`, `UserDict`), a dataclass, a list, a tuple
or a named tuple. Everything else is a leaf.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

T = TypeVar("T")
Change = Callable[[Any, str], Any]


def is_array(node: Any) -> bool:
    """Whether a node is a tensor or a NumPy array."""
    return isinstance(node, Tensor) or (type(node).__module__ == "numpy" and hasattr(node, "shape"))


def leading(array: Any) -> int:
    """How many entries an array has along its first dimension."""
    return int(array.size(0)) if isinstance(array, Tensor) else int(array.shape[0])


def is_graph(node: Any) -> bool:
    """Whether a node is a graph or a batch of graphs (PyTorch Geometric, DGL)."""
    if isinstance(node, Tensor | Mapping | list | tuple | str):
        return False
    return (
        hasattr(node, "num_graphs")
        or hasattr(node, "batch_num_nodes")
        or hasattr(node, "edge_index")
    )


def is_tensordict(node: Any) -> bool:
    """Whether a node is a mapping that knows its own batch dimensions and is indexed along them."""
    return not isinstance(node, Tensor) and isinstance(
        getattr(node, "batch_size", None), torch.Size
    )


def is_leaf(node: Any) -> bool:
    """Whether a node is not a container."""
    if isinstance(node, Tensor | PackedSequence | str):
        return True
    if isinstance(node, list | tuple | dict):
        return False
    return is_tensordict(node) or not (isinstance(node, Mapping) or is_dataclass(node))


def is_dataclass(node: Any) -> bool:
    """Whether a node is an instance of a dataclass, which has fields to look into."""
    return dataclasses.is_dataclass(node) and not isinstance(node, type | Mapping)


def children(node: Any) -> dict[str, Any] | None:
    """The members of a container, each by what is written behind the container to reach it.

    >>> children({"x": 1, "y": 2}), children((1, 2)), children("text")
    ({"['x']": 1, "['y']": 2}, {'[0]': 1, '[1]': 2}, None)
    """
    if is_leaf(node):
        return None
    if isinstance(node, Mapping):
        return {f"[{key!r}]": value for key, value in node.items()}
    if is_dataclass(node):
        return {f".{field.name}": getattr(node, field.name) for field in dataclasses.fields(node)}
    return {f"[{i}]": member for i, member in enumerate(node)}


def members(node: Any) -> list[Any]:
    """The members of a container alone; none for a leaf."""
    if is_leaf(node):
        return []
    if isinstance(node, Mapping):
        return list(node.values())
    if is_dataclass(node):
        return [getattr(node, field.name) for field in dataclasses.fields(node)]
    return list(node)


def leaves(node: Any) -> Iterator[Any]:
    """What a tree holds, in order."""
    if is_leaf(node):
        yield node
        return
    for child in members(node):
        yield from leaves(child)


def describe(batch: Any, *, limit: int = 12) -> str:
    """The members of a batch with their shapes, as an error shows them.

    >>> describe({"x": torch.zeros(16, 8), "names": ["a", "b"], "split": "train"})
    "['x'] (16, 8), ['names'] list of 2, ['split'] 'train'"
    """
    lines = list(_lines(batch, ""))
    more = [f"and {len(lines) - limit} more"] if len(lines) > limit else []
    return ", ".join(lines[:limit] + more)


def _lines(node: Any, path: str) -> Iterator[str]:
    found = children(node)
    if found is None:
        yield f"{path} {_shown(node)}".strip()
        return
    many = isinstance(node, list | tuple) and len(found) > 4
    if not found or many or not any(map(_worth_showing, leaves(node))):
        inside = f" of {_shown(node[0])}" if many else ""
        yield f"{path} {type(node).__name__} of {len(found)}{inside}".strip()
        return
    for step, child in found.items():
        yield from _lines(child, path + step)


def _worth_showing(leaf: Any) -> bool:
    return is_array(leaf) or is_graph(leaf) or isinstance(leaf, PackedSequence)


def _shown(leaf: Any) -> str:
    if is_array(leaf):
        return str(tuple(leaf.shape)) if not getattr(leaf, "is_nested", False) else "nested"
    if leaf is None or isinstance(leaf, str | int | float):
        text = repr(leaf)
        return text if len(text) < 24 else text[:20] + "…'"
    return type(leaf).__name__


def rebuild(node: Any, change: Change, *, path: str = "") -> Any:
    """A container of the same type with every member passed through `change(member, path)`."""
    if is_leaf(node):
        return node
    if isinstance(node, Mapping):
        changed = {key: change(value, f"{path}[{key!r}]") for key, value in node.items()}
        return changed if type(node) is dict else _with_items(node, changed)
    if is_dataclass(node):
        clone = copy.copy(node)
        for field in dataclasses.fields(node):
            # past frozen=True, and without running __post_init__ on a part of the batch
            value = change(getattr(node, field.name), f"{path}.{field.name}")
            object.__setattr__(clone, field.name, value)
        return clone
    new = [change(child, f"{path}[{i}]") for i, child in enumerate(node)]
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return type(node)(*new)
    return type(node)(new)


def _with_items(node: Mapping[Any, Any], changed: dict[Any, Any]) -> Any:
    clone: Any = copy.copy(node)
    if hasattr(clone, "data") and isinstance(clone.data, dict):  # UserDict, BatchEncoding
        clone.data = changed
        return clone
    if isinstance(clone, MutableMapping):
        for key, value in changed.items():
            clone[key] = value
        return clone
    return type(node)(changed)  # type: ignore[call-arg]


def shallow_copy(batch: T) -> T:
    """The same members in containers of their own, which stay whole if the others are emptied.

    >>> batch = {"x": torch.zeros(2)}
    >>> kept = shallow_copy(batch)
    >>> _ = batch.pop("x")
    >>> list(kept)
    ['x']
    """
    return rebuild(batch, lambda member, _: shallow_copy(member))  # type: ignore[no-any-return]


def to_device(batch: T, device: torch.device) -> T:
    """The batch with its tensors on `device`; itself where they are there already."""
    if all(_is_on(leaf, device) for leaf in leaves(batch)):
        return batch
    return _moved(batch, device)  # type: ignore[no-any-return]


def index_on(indices: Tensor, like: Tensor) -> Tensor:
    """Indices where what they choose from is: a host that hands them to a device does not wait for it.

    >>> index_on(torch.tensor([1]), torch.zeros(2, device="meta")).device
    device(type='meta')
    """
    # back on the host they are read at once, and must be there
    return indices.to(like.device, non_blocking=like.device.type != "cpu")


def _is_on(leaf: Any, device: torch.device) -> bool:
    if isinstance(leaf, PackedSequence):
        return leaf.data.device == device
    if isinstance(leaf, Tensor):
        return leaf.device == device
    return not (is_graph(leaf) or is_tensordict(leaf)) or not hasattr(leaf, "to")


def _moved(node: Any, device: torch.device) -> Any:
    if isinstance(node, Tensor):
        return node.to(device, non_blocking=True)
    if isinstance(node, PackedSequence) or is_tensordict(node):
        return node.to(device)
    if is_graph(node) and hasattr(node, "to"):
        return copy.copy(node).to(device)  # graphs move in place
    return rebuild(node, lambda child, _: _moved(child, device))
