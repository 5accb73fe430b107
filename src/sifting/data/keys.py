"""What samples are known by: any key of a dict, in a form that a file can hold."""

from __future__ import annotations

import enum
import re
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from sifting.data.stream import plain_index

Key = Hashable
# as they are: what a checkpoint of tensors and plain values can hold
_PLAIN = (str, int, float, bytes, bool, type(None))
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def plain_key(one: Any) -> Key:
    """A key in plain values: equal for equal keys, the same in every process, and its own plain form.

    >>> from uuid import UUID
    >>> plain_key((3, "left")), plain_key(UUID(int=1))
    ((3, 'left'), ('UUID', "UUID('00000000-0000-0000-0000-000000000001')"))

    Raises:
        ValueError: of what is no key, or is known by its place in memory alone.
    """
    one = plain_index(one)
    if type(one) in _PLAIN:
        if one != one:
            raise ValueError(f"{one!r} is not equal to itself, and is found again as nothing")
        return one  # type: ignore[no-any-return]
    if isinstance(one, tuple):
        return tuple(map(plain_key, one))
    if isinstance(one, frozenset):  # whose order changes from process to process
        return ("frozenset", *sorted(map(plain_key, one), key=repr))
    kind = type(one).__name__
    if isinstance(one, enum.Enum):
        return (kind, one.name)
    try:
        found = not isinstance(one, Tensor) and hash(one) is not None
    except TypeError:
        found = False
    if not found:
        raise ValueError(f"{one!r} is a {kind}, which cannot be the key of a dict")
    if isinstance(one, str):
        return str(one)
    shown = repr(one)
    if _ADDRESS.search(shown):
        raise ValueError(f"{shown} is known by its place in memory, which changes from run to run")
    return (kind, shown)


def plain_keys(ids: Iterable[Any]) -> list[Key]:
    """Keys in plain values; whole numbers and strings, which most are, are not looked at one by one.

    >>> plain_keys(torch.tensor([3, 4])), plain_keys(["a", "b"])
    ([3, 4], ['a', 'b'])
    """
    found = ids.tolist() if isinstance(ids, Tensor) else list(ids)
    return found if set(map(type, found)) <= {int, str} else list(map(plain_key, found))


def as_ids(found: Any, *, asked: Any) -> Sequence[Any]:
    """The IDs of a batch: whole numbers as a tensor, anything else hashable as a list.

    >>> as_ids([7, 4], asked="index"), as_ids(["a", None], asked="name")
    (tensor([7, 4]), ['a', None])

    Args:
        found: what `ids=` gave.
        asked: `ids=` itself, for people.
    """
    if not isinstance(found, Tensor):
        listed = getattr(found, "tolist", None)  # an array's, or a column's
        if not callable(listed) and (isinstance(found, str) or not isinstance(found, Iterable)):
            raise ValueError(
                f"ids={asked!r} gave {found!r}: a tensor or a list of one ID for each sample is needed"
            )
        entries = [plain_index(one) for one in (listed() if callable(listed) else found)]
        numbers = _numbers(entries)
        if numbers is None:
            _check_entries(entries, asked)
            return entries
        found = numbers
    assert isinstance(found, Tensor)
    if found.ndim != 1 or found.is_floating_point() or found.dtype == torch.bool:
        raise ValueError(
            f"ids={asked!r} gave a tensor of {found.dtype} and shape {tuple(found.shape)}: a whole number, or a "
            "list of strings or other keys, for each sample is needed"
        )
    ids: Sequence[Any] = found.long()  # type: ignore[assignment]  # iterates like one
    return ids


def _numbers(entries: list[Any]) -> Tensor | None:
    """Whole numbers as a tensor; None of anything else, and where 64 bits do not hold them."""
    if not entries or {*map(type, entries)} != {int}:
        return None if entries else torch.empty(0, dtype=torch.long)
    try:
        return torch.tensor(entries)
    except (RuntimeError, OverflowError, ValueError):  # each is somewhere what torch raises
        return None


def _check_entries(entries: list[Any], asked: Any) -> None:
    if {*map(type, entries)} <= {bool}:
        raise ValueError(
            f"ids={asked!r} gave {entries[0]!r}, …: True and False cannot tell samples from one another"
        )
    try:
        plain_keys(entries)
    except ValueError as error:
        raise ValueError(
            f"ids={asked!r}: the ID {error}: give whole numbers, strings, or tuples of them"
        ) from None
