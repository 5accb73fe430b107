"""The loss of a Hugging Face Trainer that computes its own: `compute_loss_func`, label smoothing.

The model's own loss is then not what is trained, though it still gives one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sifting.model.by_sample import Losses
from sifting.model.parts import IGNORE

CLOSE = 1e-4  # relative difference of two reductions of the same losses: untrained, all are nearly alike
CLOSE_HALF = 2e-2  # the same, of losses in half precision


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
    values_B = torch.stack([value.to(values[0].device) for value in values])
    _check_sum(function(output, labels), values_B, labels)
    return values_B


def _check_sum(whole: Tensor, values_B: Tensor, labels: Tensor) -> None:
    """Raise where the loss of a batch is neither mean nor sum of its samples': weights of classes cancel
    in a mean over one sample, and a contrastive loss has nothing to compare with there.
    """
    ways = [values_B.mean(), values_B.sum()]
    if not labels.is_floating_point() and labels.ndim > 1:
        for used in (labels, labels[:, 1:]):
            count_B = (used != IGNORE).flatten(1).sum(dim=1).to(values_B)
            ways.append((values_B * count_B).sum() / count_B.sum().clamp_min(1))
    elif not labels.is_floating_point():
        ways.append(values_B[labels.to(values_B.device) != IGNORE].mean())
    value, half = float(whole), whole.dtype in (torch.float16, torch.bfloat16)
    close = CLOSE_HALF if half else CLOSE
    if not math.isfinite(value) or not bool(values_B.isfinite().all()):
        return  # what is broken is said of the scores
    if any(math.isclose(float(way), value, rel_tol=close, abs_tol=1e-6) for way in ways):
        return
    raise ValueError(
        f"the Trainer's loss of {len(values_B)} samples is {value:.4g}, and {float(values_B.mean()):.4g} on "
        "average for them one by one: it weighs or compares them with one another (class weights, contrast), so "
        "their own losses cannot be taken from it. Pass sift={'loss_fn': nn.CrossEntropyLoss(weight=…)}, the loss "
        "of logits and labels, or sift={'losses': lambda model, batch: …}, which returns one loss per sample"
    )


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
