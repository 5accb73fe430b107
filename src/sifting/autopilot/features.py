"""What a model's last layer is given in the user's own forward: for the agreement of gradients."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from sifting.model.plan import Plan


class LastLayer:
    """Listens, for one forward, to the linear layer whose output is the logits.

    >>> model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2))
    >>> last = LastLayer(model)
    >>> last.find(2) is model[2]
    True

    A model that is compiled is left alone: a hook would have it compiled again.
    """

    def __init__(self, model: nn.Module, whole: nn.Module | None = None) -> None:
        self.model, self.whole = model, model if whole is None else whole
        self._handle: RemovableHandle | None = None
        self._seen: Tensor | None = None

    def find(self, outputs: int) -> nn.Linear | None:
        """The last linear layer with so many outputs."""
        found = [
            module
            for module in self.model.modules()
            if isinstance(module, nn.Linear) and module.out_features == outputs
        ]
        return found[-1] if found else None

    def listen(self, plan: Plan | None) -> None:
        """Note what the layer is given in the next forward."""
        self.take()
        if plan is None or plan.kind != "parts" or len(plan.parts) != 1:
            return
        shape = plan.shapes.get(plan.parts[0].logits, ())
        if len(shape) != 1 or any(map(_compiled, self.whole.modules())):
            return
        module = self.find(shape[0])
        if module is None:
            return

        self._handle = module.register_forward_hook(_Note(self))

    def take(self) -> Tensor | None:
        """What was noted, if anything; nothing is listened to any more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        seen, self._seen = self._seen, None
        return seen


def _compiled(module: nn.Module) -> bool:
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


class _Note:
    """Forward hook that notes what a layer is given; mute in a copy of the model."""

    def __init__(self, last: LastLayer | None = None) -> None:
        self._last = None if last is None else weakref.ref(last)

    def __call__(self, module: nn.Module, args: Any, output: Any) -> None:
        last = None if self._last is None else self._last()
        if last is not None and args and isinstance(args[0], Tensor) and torch.is_grad_enabled():
            last._seen = args[0].detach()

    def __reduce__(self) -> tuple[type[_Note], tuple[()]]:
        return _Note, ()

    def __deepcopy__(self, memo: dict[int, Any]) -> _Note:
        return _Note()
