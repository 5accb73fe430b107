"""States compared, however they are nested."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def same(one: Any, other: Any) -> bool:
    """Whether two states hold the same, to the last bit; what is not a number is like itself."""
    if isinstance(one, Tensor):
        return (
            isinstance(other, Tensor)
            and one.shape == other.shape
            and torch.equal(one.nan_to_num(-7), other.nan_to_num(-7))
        )
    if isinstance(one, dict):
        alike = isinstance(other, dict) and one.keys() == other.keys()
        return alike and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or (one != one and other != other)
