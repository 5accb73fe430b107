"""What a model's last layer is given in the user's own forward: for the agreement of gradients."""

from __future__ import annotations

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

    def __init__(self, model: nn.Module) -> None:
        self.model = model
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
        if len(shape) != 1 or any(hasattr(m, "_orig_mod") for m in self.model.modules()):
            return
        module = self.find(shape[0])
        if module is None or module._compiled_call_impl is not None:
            return

        def note(module: nn.Module, args: Any, output: Any) -> None:
            if args and isinstance(args[0], Tensor) and torch.is_grad_enabled():
                self._seen = args[0].detach()

        self._handle = module.register_forward_hook(note)

    def take(self) -> Tensor | None:
        """What was noted, if anything; nothing is listened to any more."""
        if self._handle is not None:
            self._handle.remove()
            self._handle = None
        seen, self._seen = self._seen, None
        return seen
