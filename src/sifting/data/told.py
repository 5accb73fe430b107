"""How many samples a batch holds by a number that the user gave.

The number is that of a whole batch. Parts of it, and a last batch that is smaller, hold fewer, so the
number is looked for in the first batch, and what has that many entries there is counted from then on.
"""

from __future__ import annotations

from typing import Any

from sifting.data.count import alike
from sifting.data.member import own_size
from sifting.data.tree import children, describe, is_array, is_leaf

MemberPlace = tuple[tuple[str, ...], int]  # the way to a member, and the dimension that is counted


class Told:
    """Counts samples where a batch has as many entries as it was said to have.

    >>> import torch
    >>> told = Told(4)
    >>> told.count({"x": torch.zeros(4, 8), "table": torch.zeros(9, 9)})
    4
    >>> told.count({"x": torch.zeros(3, 8), "table": torch.zeros(9, 9)})
    3

    Args:
        number: of samples in a whole batch.
        any_dimension: count along other dimensions than the first, too: for batches that only a
            function of the user can divide.
    """

    def __init__(self, number: int, *, any_dimension: bool = False) -> None:
        self.number, self.any_dimension = number, any_dimension
        self.places: list[MemberPlace] = []

    def count(self, batch: Any) -> int:
        """How many samples a batch holds; the first must hold the number."""
        found = {place: _entries(batch, place) for place in self.places}
        counts = {place: entries for place, entries in found.items() if entries is not None}
        if not counts:
            self.places = _places(batch, self.number, any_dimension=self.any_dimension)
            if not self.places:
                raise ValueError(
                    f"batch_size={self.number}, but no member of the batch has {self.number} entries: "
                    f"{describe(batch)}. It is the number of candidates, 1/keep times what is trained where they "
                    "are drawn by index. Name a member that has one per sample (batch_size='…'), or pass a "
                    "function that counts them (batch_size=lambda batch: …)"
                )
            return self.number
        if len(set(counts.values())) > 1:  # what had the number by chance has it still
            counts = {place: count for place, count in counts.items() if count != self.number}
        if len(set(counts.values())) > 1:
            raise ValueError(
                f"batch_size={self.number}, and members that had {self.number} entries now differ: "
                f"{describe(batch)}. Name the one that has an entry per sample (batch_size='…'), or pass a "
                "function that counts them (batch_size=lambda batch: …)"
            )
        self.places = list(counts)
        return next(iter(counts.values()))


def _places(
    node: Any, number: int, *, any_dimension: bool, way: tuple[str, ...] = ()
) -> list[MemberPlace]:
    """Everything in a batch that has `number` entries, but for what its samples have inside."""
    if is_leaf(node):
        dimensions = len(node.shape) if any_dimension and is_array(node) else 1
        return [(way, i) for i in range(dimensions) if _entries(node, ((), i)) == number]
    if _is_list_of_samples(node, number):
        return [(way, 0)]
    return [
        place
        for step, child in (children(node) or {}).items()
        for place in _places(child, number, any_dimension=any_dimension, way=(*way, step))
    ]


def _is_list_of_samples(node: Any, number: int) -> bool:
    """Whether a node is `number` things of one kind; not so many tensors of so many samples each."""
    if not isinstance(node, list | tuple) or hasattr(node, "_fields") or len(node) != number:
        return False
    return alike(node) and any(own_size(entry) != number for entry in node if entry is not None)


def _entries(node: Any, place: MemberPlace) -> int | None:
    """How many entries there are at a place; None where the batch has no such place."""
    way, dimension = place
    for step in way:
        inside = children(node) or {}
        if step not in inside:
            return None
        node = inside[step]
    if dimension:
        return int(node.shape[dimension]) if is_array(node) and node.ndim > dimension else None
    return own_size(node) if is_leaf(node) else len(node)
