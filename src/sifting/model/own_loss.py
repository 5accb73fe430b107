"""The loss that a model gives of its own: read from its output, without what is no sample's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

COEFFICIENT = "router_aux_loss_coef"


def loss_of(output: Any, model: nn.Module | None = None) -> Tensor | None:
    """The reduced loss in a model's output, where there is one.

    A mixture of experts adds a term that keeps its router even, of all tokens of a batch together: it says
    nothing of a sample, and is taken off.

    Args:
        output: of a forward with labels.
        model: that gave it; None takes the loss as it is.
    """
    loss = _given(output)
    balance = _balance(output, model)
    return loss if loss is None or balance is None else loss - balance.to(loss)


def _given(output: Any) -> Tensor | None:
    if isinstance(output, Tensor):
        return output if output.numel() == 1 and output.ndim == 0 else None
    if isinstance(output, Mapping):
        loss = output.get("loss")
    elif isinstance(output, list | tuple):
        loss = output[0] if output else None
        if not (isinstance(loss, Tensor) and loss.numel() == 1):  # (logits, loss), as some have it
            scalars = [one for one in output if isinstance(one, Tensor) and one.ndim == 0]
            loss = scalars[0] if len(scalars) == 1 else None
    else:
        loss = getattr(output, "loss", None)
    return loss if isinstance(loss, Tensor) and loss.numel() == 1 else None


def _balance(output: Any, model: nn.Module | None) -> Tensor | None:
    """The router's term as it is in the loss of Hugging Face's models, where the output has one."""
    found = output.get("aux_loss") if isinstance(output, Mapping) else None
    if model is None or not isinstance(found, Tensor) or found.numel() != 1:
        return None
    config: Any = getattr(model, "config", None)
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    # the model's own forward goes by its attribute, which is read from the config once
    weight = getattr(model, COEFFICIENT, getattr(text, COEFFICIENT, None))
    return None if weight is None else weight * found.detach()
