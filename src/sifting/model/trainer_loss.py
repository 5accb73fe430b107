"""The loss of a Hugging Face Trainer that computes its own: `compute_loss_func`, label smoothing.

The model's own loss is then not what is trained, though it still gives one.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sifting.data.documents import DocumentSpan, documents
from sifting.model.by_sample import Losses
from sifting.model.call import no_cache
from sifting.model.parts import IGNORE

CLOSE = 1e-4  # relative difference of two reductions of the same losses: untrained, all are nearly alike
CLOSE_HALF = 2e-2  # the same, of losses in half precision


def trainer_losses(trainer: Any) -> Losses | None:
    """The Trainer's own loss as `losses(model, batch)`; None where it takes the model's.

    Its loss function can only reduce, so it is called once a sample, on one forward of them all; of packed
    rows, once a document.

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
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    # with a cache, documents of a packed row would look at one another
    output = model(**inputs, **no_cache(model, inputs))
    values, parts = [], []
    for one, label in _samples(output, labels, documents(batch)):
        parts.append(label)
        used = label[:, shift:] if shift else label
        if not label.is_floating_point() and bool((used == IGNORE).all()):
            values.append(torch.zeros((), device=label.device))  # nothing to learn
            continue
        values.append(function(one, label).float().reshape(()))
    values_B = torch.stack([value.to(values[0].device) for value in values])
    _check_sum(function(output, labels), values_B, parts)
    return values_B


def _samples(
    output: Any, labels: Tensor, spans: list[DocumentSpan] | None
) -> Iterator[tuple[Any, Tensor]]:
    """Output and labels of each sample: of a row, or of each document where rows hold several."""
    if spans is None:
        for i in range(len(labels)):
            yield _part(output, labels.shape[:1], slice(i, i + 1)), labels[i : i + 1]
        return
    for row, start, stop in spans:
        here = slice(row, row + 1), slice(start, stop)
        yield _part(output, labels.shape, *here), labels[here]


def _check_sum(whole: Tensor, values_B: Tensor, labels: list[Tensor]) -> None:
    """Raise where the loss of a batch is neither mean nor sum of its samples': weights of classes cancel
    in a mean over one sample, and a contrastive loss has nothing to compare with there.
    """
    ways = [values_B.mean(), values_B.sum()]
    first = labels[0]
    if not first.is_floating_point():
        for shift in (0, 1) if first.ndim > 1 else (0,):
            used = [label[:, shift:] if shift else label for label in labels]
            count_B = torch.stack([(label != IGNORE).sum() for label in used]).to(values_B)
            ways.append((values_B * count_B).sum() / count_B.sum().clamp_min(1))
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


def _part(output: Any, shape: Sequence[int], *here: slice) -> Any:
    """What of a model's output is in one place of its first dimensions, which have this shape."""
    dims = len(here)

    def of_one(value: Any) -> Any:
        goes = isinstance(value, Tensor) and value.shape[:dims] == tuple(shape[:dims])
        return value[here] if goes else value

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
