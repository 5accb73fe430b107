"""The gradient of the user's loss, noted now and then: is what is trained what is scored?"""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import Tensor

from sifting.model.agreement import compare_gradients
from sifting.model.call import logits_of
from sifting.model.plan import Plan

COMPARED_UNTIL = (
    256  # steps: an untrained model's gradient hardly shows smoothing, a later one does
)


class TrainedLoss:
    """Notes the gradient of the user's loss at the logits, ever more seldom, and holds it against the plan's.

    Args:
        compares: whether it is ever done.

    >>> check = TrainedLoss(compares=True)
    >>> check.due(0), check.noted
    (True, False)
    """

    def __init__(self, *, compares: bool) -> None:
        self._compares = compares
        self._at = 0  # the step from which it is done next
        self._outputs: dict[str, Tensor] = {}  # logits of the forward that is compared
        self._gradients: dict[str, Tensor] = {}  # of the user's loss at them

    def due(self, step: int) -> bool:
        """Whether a forward at this step is to be listened to."""
        return self._compares and step >= self._at

    @property
    def noted(self) -> bool:
        """Whether there is a gradient to be held against the plan's."""
        return bool(self._gradients)

    def listen(self, output: Any, size: int) -> None:
        """Have the gradient of the user's loss noted at the logits, once.

        Args:
            output: of the training forward.
            size: samples of the batch.
        """
        if self._outputs:
            return
        for name, logits in logits_of(output).items():
            if logits.requires_grad and len(logits) == size:
                self._outputs[name] = logits.detach()
                logits.register_hook(partial(self._note, name))  # type: ignore[no-untyped-call]

    def _note(self, name: str, gradient: Tensor | None) -> None:
        # DDP hands on that there is none, where the loss is the model's own
        if gradient is not None:
            self._gradients[name] = gradient

    def compare(
        self, plan: Plan | None, batch: Any, *, weights_B: Tensor | None, step: int
    ) -> str | None:
        """What is wrong, in words, where the loss that is trained is not the one that is scored.

        Args:
            plan: how the model is scored; None where it is not known.
            batch: that was trained, on the model's device; None where it is not known.
            weights_B: that its losses were to be multiplied by, if any.
            step: how many there were.
        """
        outputs, gradients = self._outputs, self._gradients
        self._outputs, self._gradients = {}, {}
        if plan is None or batch is None:
            return None
        if weights_B is not None and bool((weights_B == 1).all()):
            weights_B = None  # the user has no reason to multiply by them
        found = compare_gradients(plan, outputs, gradients, batch, weights_B=weights_B)
        if found is None:
            return None
        self._at = 2 * max(1, step)
        # in half precision, the small gradients of later steps are too coarse to tell
        half = any(logits.element_size() < 4 for logits in outputs.values())
        self._compares = found.same and not half and self._at <= COMPARED_UNTIL
        return None if found.same else found.message
