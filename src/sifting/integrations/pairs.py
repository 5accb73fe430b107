"""Batches of pairs: as samples with two rows each, or as a trainer's rows; and outputs that are known already.

Shapes: B pairs, R rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def fold(rows: Mapping[str, Any]) -> dict[str, Any]:
    """A batch of 2B rows as B pairs, one entry each.

    >>> import torch
    >>> pairs = fold({"input_ids": torch.tensor([[1], [2], [3], [4]]), "margin": torch.tensor([5, 6])})
    >>> pairs["input_ids"].tolist(), pairs["margin"].tolist()
    ([[[1], [3]], [[2], [4]]], [5, 6])
    """
    size = len(rows["input_ids"]) // 2

    def both(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim > 1 and len(value) == 2 * size:
            return value.reshape(2, size, *value.shape[1:]).transpose(0, 1).contiguous()
        return value

    return {name: both(value) for name, value in rows.items()}


def unfold(pairs: Mapping[str, Any]) -> dict[str, Any]:
    """The rows that `fold` made pairs of; rows stay rows.

    >>> import torch
    >>> rows = {"input_ids": torch.arange(8).reshape(4, 2), "margin": torch.tensor([5.0, 6.0])}
    >>> torch.equal(unfold(fold(rows))["input_ids"], rows["input_ids"])
    True
    """

    def apart(value: Any) -> Any:
        if isinstance(value, Tensor) and value.ndim > 2:
            return value.transpose(0, 1).flatten(0, 1)
        return value

    return {name: apart(value) for name, value in pairs.items()}


def some_rows(found: Any, *, rows_R: Tensor, size: int) -> Any:
    """A batch, or a model's output of it, with the rows of some of its B pairs alone.

    >>> import torch
    >>> some_rows({"x": torch.arange(4), "margin": torch.tensor([7, 8])}, rows_R=torch.tensor([1, 3]), size=2)
    {'x': tensor([1, 3]), 'margin': tensor([8])}
    """

    def of(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.ndim == 0:
            return value
        if len(value) == 2 * size:
            return value[rows_R.to(value.device)]
        return value[rows_R[:1].to(value.device)] if len(value) == size else value

    taken = {name: of(value) for name, value in found.items()}
    return taken if type(found) is dict else type(found)(**taken)


class Known(nn.Module):
    """Stands for a model whose output is known already; Accelerate looks for modules in it."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, **kwargs: Any) -> Any:
        return self.output


@contextmanager
def recorded(*modules: nn.Module | None) -> Iterator[list[Any]]:
    """While open, what these modules put out is written down, in the order of their calls."""
    outputs: list[Any] = []
    handles = [
        module.register_forward_hook(lambda module, args, output: outputs.append(output))
        for module in modules
        if module is not None
    ]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
