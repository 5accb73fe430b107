"""The additive exit of the paper's ResNet: output = L_f·R_f + L_i·R_i, scored by L_i·R_i alone."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from sifting.exits.base import Exit
from sifting.model.features import channels_of, find_stage, pool, stopped_at
from sifting.model.find import get_module
from sifting.model.parts import Score
from sifting.model.plan import Plan
from sifting.model.score_functions import custom_losses, custom_scores
from sifting.model.values import first_tensor
from sifting.parallel.detect import unwrap

NAME = "sift_exit"


class AdditiveExit(Exit):
    """A second classifier on an intermediate representation, added to the model's output.

    >>> import torch
    >>> from sifting import Sifter
    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 16, 3),
    ...                       nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10))
    >>> exit = AdditiveExit(model, "1")
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)   # after the exit, so it is trained
    >>> sifter = Sifter(model, exit=exit, score="loss")
    >>> sifter.score((torch.zeros(2, 3, 8, 8), torch.tensor([3, 4]))).shape
    torch.Size([2])

    The classifier L_i is registered as `sift_exit` of the model's last linear layer, so that it is
    trained, moved and saved with the model: make the exit before the optimizer. `remove()` takes
    it out again.

    Beware: only the sum is trained, so on data seen many times the final branch learns to cancel
    the exit's error, and the exit then picks worse than random. `stats().rho_approx` shows it;
    `TunedExit` does not share weights with the sum.

    Args:
        model: the model to add it to.
        at: dotted path of the module whose output is R_i; by default the second stage.
        head: dotted path of the linear layer L_f; by default the model's last.
        features: channels of R_i, where they cannot be read off its layers.
    """

    def __init__(
        self,
        model: nn.Module,
        at: str | None = None,
        *,
        head: str | None = None,
        features: int | None = None,
    ) -> None:
        model = unwrap(model)
        at = at if at is not None else find_stage(model)
        if at is None:
            raise ValueError(
                f"{type(model).__name__} has no stages (layer1, layer2, …): name the module with "
                "AdditiveExit(model, 'path.to.module')"
            )
        present = [name for name, _ in model.named_modules() if name.split(".")[-1] == NAME]
        if present:
            raise ValueError(
                f"the model has an additive exit already, {present[0]!r}: remove() it first"
            )
        self.path = at
        self.model = model
        self.module = get_module(model, at, "at")
        self.head = _linear(model, head)
        width = features if features is not None else channels_of(self.module)
        if width is None:
            raise ValueError(
                f"cannot determine how many channels {at!r} outputs: pass AdditiveExit(model, {at!r}, features=…)"
            )
        weight = self.head.weight
        self.linear = nn.Linear(
            width, self.head.out_features, device=weight.device, dtype=weight.dtype
        )
        # below a leaf: in the model itself, an nn.Sequential would run it as one more layer
        self.head.add_module(NAME, self.linear)
        self._features: Tensor | None = None
        self._handles = [
            self.module.register_forward_hook(self._grab),
            self.head.register_forward_hook(self._add),
        ]

    def __repr__(self) -> str:
        return f"AdditiveExit({self.path!r})"

    def remove(self) -> None:
        """Take the exit out: the model is as it was before."""
        for handle in self._handles:
            handle.remove()
        self.head._modules.pop(NAME, None)

    def _grab(self, module: nn.Module, args: Any, output: Any) -> None:
        self._features = first_tensor(output)

    def _add(self, module: nn.Module, args: Any, output: Tensor) -> Tensor:
        features, self._features = self._features, None
        if features is None:
            raise RuntimeError(
                f"{self.path!r} did not run before the head: it cannot be an early exit"
            )
        return output + self._early(features)

    def _early(self, features: Tensor) -> Tensor:
        pooled_BF = pool(features, channels=self.linear.in_features)
        if pooled_BF.shape[1] != self.linear.in_features:
            raise ValueError(
                f"{self.path!r} outputs {pooled_BF.shape[1]} channels, not {self.linear.in_features}: pass "
                f"AdditiveExit(model, {self.path!r}, features={pooled_BF.shape[1]})"
            )
        return self.linear(pooled_BF)  # type: ignore[no-any-return]

    def bind(self, model: nn.Module, stack: str | None) -> None:
        if model is not self.model:
            raise ValueError(
                "this AdditiveExit was made for another model: make it for the one you sift"
            )

    def prepare(self, plan: Plan, model: nn.Module, probe: Any) -> None:
        if len(plan.shapes) != 1 or len(next(iter(plan.shapes.values()))) != 1:
            raise ValueError(
                f"an additive exit needs a model with one prediction per sample; this one gives {plan.shapes}: "
                "choose exit=k"
            )

    def score(self, plan: Plan, model: nn.Module, batch: Any, score: Score, learn: bool) -> Tensor:
        features = stopped_at(self.module, lambda: plan.call.run(model, batch))
        self._features = None
        logits = self._early(features)
        if callable(score):
            return custom_scores(plan, score, dict.fromkeys(plan.shapes, logits), batch)
        if score == "loss" and plan.loss_fn is not None:
            return custom_losses(plan, {"logits": logits}, batch)
        part = plan.parts[0]
        labels = plan.labels_for(part, batch)
        return plan.score(part, plan.laid_out(part, logits, labels, batch), labels, score)


def _linear(model: nn.Module, path: str | None) -> nn.Linear:
    if path is not None:
        module = get_module(model, path, "head")
        if not isinstance(module, nn.Linear):
            raise ValueError(f"head={path!r} is a {type(module).__name__}: name the last nn.Linear")
        return module
    linears = [m for m in model.modules() if isinstance(m, nn.Linear)]
    if not linears:
        raise ValueError(f"{type(model).__name__} has no nn.Linear to add to: pass head='path'")
    return linears[-1]
