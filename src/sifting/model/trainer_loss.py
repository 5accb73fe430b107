"""The loss of a Hugging Face Trainer that computes its own: `compute_loss_func`, label smoothing.

The model's own loss is then not what is trained, though it still gives one.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sifting.model.by_sample import Losses
from sifting.model.parts import IGNORE


def trainer_losses(trainer: Any) -> Losses | None:
    """The Trainer's own loss as `losses(model, batch)`; None where it takes the model's.

    Its loss function can only reduce, so it is called once a sample, on one forward of them all.

    Args:
        trainer: a `transformers.Trainer`.
    """
    function = getattr(trainer, "compute_loss_func", None)
    if function is not None:
        return partial(_losses, lambda output, label: function(output, label, **_counted(label)), 0)
    smoother = getattr(trainer, "label_smoother", None)
    if smoother is None:
        return None
    causal = _causal(trainer.model)
    return partial(_losses, partial(smoother, shift_labels=causal), int(causal))


def _counted(label: Tensor) -> dict[str, Tensor]:
    """What the Trainer counts, for a loss to divide by."""
    return {"num_items_in_batch": (label != IGNORE).sum()}


def _losses(
    function: Callable[[Any, Tensor], Tensor], shift: int, model: nn.Module, batch: Any
) -> Tensor:
    if "labels" not in batch:
        raise ValueError(
            f"the Trainer computes its own loss from 'labels', and the batch holds {sorted(batch)}: let the "
            "data collator yield them, or pass sift={'losses': …}"
        )
    labels = batch["labels"]
    output = model(**{name: value for name, value in batch.items() if name != "labels"})
    values = []
    for i in range(len(labels)):
        one = _row(output, i, len(labels))
        label = labels[i : i + 1]
        used = label[:, shift:] if shift else label
        if not label.is_floating_point() and bool((used == IGNORE).all()):
            values.append(torch.zeros((), device=label.device))  # nothing to learn
            continue
        values.append(function(one, label).float().reshape(()))
    return torch.stack([value.to(values[0].device) for value in values])


def _row(output: Any, row: int, size: int) -> Any:
    """A model's output of one of its samples."""

    def of_one(value: Any) -> Any:
        by_sample = isinstance(value, Tensor) and value.ndim > 0 and len(value) == size
        return value[row : row + 1] if by_sample else value

    if isinstance(output, Mapping):
        one: Any = copy.copy(output)
        for name, value in output.items():
            one[name] = of_one(value)
        return one
    return tuple(map(of_one, output)) if isinstance(output, tuple) else of_one(output)


def _causal(model: nn.Module) -> bool:
    """Whether the Trainer shifts the labels of this model, which goes by its class."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    inner = getattr(model, "get_base_model", None)
    model = inner() if callable(inner) else model
    return type(model).__name__ in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values()
