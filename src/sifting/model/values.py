"""Tensors inside what modules take and return: tuples, dicts and outputs with names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """All tensors in a value, in order.

    >>> [t.item() for t in tensors_in({"a": torch.tensor(1), "b": [None, (torch.tensor(2), 3)]})]
    [1, 2]
    """
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for member in value.values():
            yield from tensors_in(member)
    elif isinstance(value, tuple | list):
        for member in value:
            yield from tensors_in(member)


def first_tensor(value: Any) -> Tensor | None:
    """The first tensor in a block's output.

    >>> first_tensor((None, (torch.tensor(1), 3)))
    tensor(1)
    """
    return next(tensors_in(value), None)


def with_first_tensor(value: Any, tensor: Tensor) -> Any:
    """The same output with another first tensor; what was given is left as it is.

    >>> with_first_tensor((None, (torch.tensor(1), 3)), torch.tensor(7))
    (None, (tensor(7), 3))
    """
    if isinstance(value, Tensor):
        return tensor
    if isinstance(value, dict):
        for key, member in value.items():
            if first_tensor(member) is not None:
                changed = type(value)(**value) if type(value) is not dict else dict(value)
                changed[key] = with_first_tensor(member, tensor)
                return changed
    if isinstance(value, tuple | list):
        for i, member in enumerate(value):
            if first_tensor(member) is not None:
                members = [*value[:i], with_first_tensor(member, tensor), *value[i + 1 :]]
                named = hasattr(value, "_fields")
                return type(value)(*members) if named else type(value)(members)
    raise ValueError(f"a {type(value).__name__} without a tensor")


def close(a: Tensor, b: Tensor) -> bool:
    """Equal up to rounding, by the scale of the whole, and finite.

    >>> close(torch.ones(3), torch.ones(3) + 1e-7), close(torch.ones(3), torch.ones(2))
    (True, False)
    """
    if a.shape != b.shape or a.is_nested or b.is_nested or a.device != b.device:
        return False
    if a.numel() == 0:
        return True
    low = {a.dtype, b.dtype} & {torch.float16, torch.bfloat16}
    error = (a.detach().float() - b.detach().float()).abs().max()
    return bool(error <= (1e-2 if low else 1e-5) * b.detach().float().abs().max())
