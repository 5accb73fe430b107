"""A running average of a model's weights, at which noise of the learning rate is gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from sifting.parallel.detect import reshard


class AveragedWeights:
    """Follows a model's weights, and puts their average in their place for a look.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> average = AveragedWeights(model, horizon=2)
    >>> before = model.weight.clone()
    >>> _ = model.weight.data.add_(1)
    >>> average.update()
    >>> with average.in_place():
    ...     bool(torch.allclose(model.weight, before + 0.5))
    True
    >>> bool((model.weight == before + 1).all())
    True

    It takes as much memory as the weights.

    Args:
        model: to follow: the parameters that are trained, and the statistics of normalization.
        horizon: updates that it averages over.
    """

    def __init__(self, model: nn.Module, horizon: float) -> None:
        self.model, self.horizon = model, horizon
        self._values = {name: tensor.clone() for name, tensor in self._tensors()}

    def _tensors(self) -> Iterator[tuple[str, Tensor]]:
        """What training changes: no masks (−∞ has no average), no tables, nothing frozen.

        By `.data`, so that a graph that the user still holds stays valid.
        """
        for name, tensor in self.model.named_parameters():
            if tensor.requires_grad and tensor.is_floating_point():
                yield name, tensor.data
        for path, module in self.model.named_modules():
            if isinstance(module, _NormBase):
                for name in ("running_mean", "running_var"):
                    tensor = getattr(module, name)
                    if tensor is not None:
                        yield f"{path}.{name}", tensor.data

    def _known(self) -> Iterator[tuple[Tensor, Tensor]]:
        for name, tensor in self._tensors():
            value = self._values.get(name)
            if value is not None and _alike(value, tensor):
                yield tensor, value

    @torch.no_grad()
    def update(self, steps: int = 1) -> None:
        """Take in the weights as they are, `steps` steps after the last time."""
        weight = min(1.0, steps / self.horizon)
        for name, tensor in self._tensors():
            value = self._values.get(name)
            if value is not None and _alike(value, tensor):
                value.lerp_(tensor, weight)
            else:  # thawed, moved or cast since
                self._values[name] = tensor.clone()

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """While open, the model has the averaged weights; afterwards its own, to the last bit."""
        with torch.no_grad():
            own = [(tensor, tensor.clone()) for tensor, _ in self._known()]
            try:
                for tensor, value in self._known():
                    tensor.copy_(value)
                yield
            finally:
                reshard(self.model)  # a forward leaves the outermost parameters gathered
                for tensor, value in own:
                    tensor.copy_(value)

    def state_dict(self) -> dict[str, Any]:
        return {name: value.clone() for name, value in self._values.items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave; of another model it is refused."""
        for name, value in self._values.items():
            if name not in state or state[name].shape != value.shape:
                raise ValueError(
                    f"the state's averaged weights do not fit {name!r} of this model: it was saved with another"
                )
        for name, value in self._values.items():
            value.copy_(state[name])


def _alike(one: Tensor, other: Tensor) -> bool:
    return (one.shape, one.dtype, one.device) == (other.shape, other.dtype, other.device)
