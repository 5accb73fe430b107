"""Is the loss that is trained the one that is scored? Told by its value, or by its gradient.

A loop may compute its loss anywhere. What reaches the model's outputs in the backward pass shows
which loss it was: smoothing, class weights, a shift or another loss altogether.

Shapes: B samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sifting.model import parts
from sifting.model.by_sample import check_reduced, reduced_losses
from sifting.model.call import logits_of
from sifting.model.matching import tolerances
from sifting.model.objective import GIVEN
from sifting.model.own_loss import loss_of
from sifting.model.parts import reduced_loss
from sifting.selection.tokens import MEAN

if TYPE_CHECKING:
    from sifting.model.plan import Plan

CLOSE = 0.02  # relative difference of two losses that are taken for the same
ALIKE = 0.9999  # cosine of two gradients that are taken for the same
ALIKE_HALF = 0.999  # the same, of outputs in half precision


@dataclass(frozen=True)
class Agreement:
    """Whether what is trained is what is scored.

    Attributes:
        same: the answer.
        trained: the loss that is trained, or 1.0 for a gradient.
        scored: the closest mean of the scored losses, or the cosine of the gradients.
        message: one sentence for a warning; empty where they are the same.
    """

    same: bool
    trained: float
    scored: float
    message: str = ""


def compare_losses(
    plan: Plan, trained: Tensor | float, scored_B: Tensor, *others: Any
) -> Agreement:
    """Compare the loss that is trained with the mean of the scored ones.

    Args:
        plan: what was assumed.
        trained: the loss of the user's step, over the same samples.
        scored_B: their losses as scored.
        others: further values that count as the same: other reductions of the same losses
            (`reduced`: over labelled positions, as the user's loss function has it).
    """
    value = float(trained)
    ways = [float(scored_B.double().mean()), float(scored_B.double().sum())]
    ways += [float(other) for other in others if other is not None]
    closest = min(ways, key=lambda way: abs(way - value))
    same = math.isclose(closest, value, rel_tol=CLOSE, abs_tol=1e-4) or not math.isfinite(value)
    if same:
        return Agreement(True, value, closest)
    return Agreement(False, value, closest, _message(plan, f"is {value:.4g}", f"{closest:.4g}"))


def compare_gradients(
    plan: Plan,
    outputs: Mapping[str, Tensor],
    gradients: Mapping[str, Tensor],
    batch: Any,
    *,
    weights_B: Tensor | None = None,
) -> Agreement | None:
    """Compare the gradient that reached the model's outputs with that of the scored losses.

    Any positive factor between them is none of our business: a scaled loss, accumulation. None
    where the gradient cannot be read: other samples, no gradient, a loss of the model's own.

    Args:
        plan: what was assumed.
        outputs: the logits of a training forward, by name.
        gradients: of the loss that is trained, at these outputs.
        batch: the batch of that forward.
        weights_B: what the losses of the samples were multiplied by.
    """
    labels = plan.call.labels_of(batch)
    names = [name for name in outputs if name in gradients]
    sizes = {len(outputs[name]) for name in names} | {len(value) for value in labels.values()}
    if plan.kind not in ("parts", "loss_fn") or not names or len(sizes) != 1:
        return None
    # a few samples tell as much as all, and logits over a vocabulary are large
    size = sizes.pop()
    some = min(size, max(2, parts.CHUNK // max(outputs[name][0].numel() for name in names)))
    rows = torch.arange(some)
    piece = plan.call.samples.take(batch, rows, size=size) if some < size else batch
    with torch.enable_grad():
        leaves = {name: outputs[name][:some].detach().float().requires_grad_() for name in names}
        weights = None if weights_B is None else weights_B[:some]
        total = reduced(plan, leaves, piece, weights, whole=batch)
        if total is None or not total.requires_grad:
            return None
        wanted = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    ours, theirs = [], []
    for name, gradient in zip(leaves, wanted, strict=True):
        theirs.append(gradients[name][:some].detach().double().flatten())
        missing = torch.zeros_like(theirs[-1])
        ours.append(missing if gradient is None else gradient.double().flatten())
    a, b = torch.cat(ours), torch.cat(theirs).to(ours[0].device)
    if not bool(b.isfinite().all()) or not bool(b.any()) or not bool(a.any()):
        return None
    cosine = float(torch.dot(a, b) / (a.norm() * b.norm()))
    half = any(outputs[name].dtype in (torch.float16, torch.bfloat16) for name in names)
    if cosine >= (ALIKE_HALF if half else ALIKE):
        return Agreement(True, 1.0, cosine)
    said = f"has a gradient at the model's outputs that agrees by {cosine:.4f}"
    return Agreement(False, 1.0, cosine, _message(plan, said, "1.0000"))


def reduced(
    plan: Plan,
    logits: dict[str, Tensor],
    batch: Any,
    weights_B: Tensor | None = None,
    *,
    whole: Any = None,
) -> Tensor | None:
    """A batch's loss from its logits as a step would have it: over labelled positions.

    Args:
        plan: what was assumed.
        logits: by name.
        batch: whose labels they are compared with.
        weights_B: of the samples, where their losses are multiplied; then the mean is over samples.
        whole: the batch that `batch` is a part of. Each term is then what it adds to the mean over that
            one: of tokens and of sequences, a part has not the same share.
    """
    labels = plan.call.labels_of(batch)
    if weights_B is not None:
        losses_B = replace(plan, tokens=MEAN).losses(logits, batch)
        return None if losses_B is None else (losses_B * weights_B.to(losses_B.device)).mean()
    if plan.kind == "loss_fn":
        assert plan.loss_fn is not None
        # in training there may be none of what is scored: TRL's fused head gives log-probabilities alone
        if len(logits) != 1 or len(labels) != 1 or not logits.keys() <= plan.shapes.keys():
            return None
        (values,), (wanted,) = logits.values(), labels.values()
        return plan.loss_fn.reduced(values, wanted.to(values.device))
    if plan.kind != "parts" or any(
        part.logits not in logits or part.labels not in labels for part in plan.parts
    ):
        return None
    all_labels = labels if whole is None else plan.call.labels_of(whole)
    terms = []
    for part in plan.parts:
        name = str(part.labels)
        share = part.count(labels[name]) / max(1, part.count(all_labels[name]))
        terms.append(part.weight * share * reduced_loss(part, logits[part.logits], labels[name]))
    return torch.stack(terms).sum()


def verifiable(plan: Plan, model: nn.Module, batch: Any) -> bool:
    """Whether the model has a loss of its own that what was found can be held against."""
    known = plan.origin == GIVEN or plan.kind == "losses"
    return not known and plan.call.takes_labels(model, batch)


def to_verify(plan: Plan, batch: Any) -> Any:
    """As many samples of a batch as have few logits."""
    samples = plan.call.samples
    size = samples.size(batch)
    largest = max((math.prod(shape) for shape in plan.shapes.values()), default=1)
    some = min(size, max(2, parts.CHUNK // max(1, largest)))
    return samples.take(batch, torch.arange(some), size=size) if some < size else batch


def verify(plan: Plan, model: nn.Module, piece: Any) -> None:
    """Raise where what was found on some samples does not give the model's own loss of others.

    Two samples of one class cannot tell that classes have weights. It takes a forward; the model is in
    eval mode, without gradients.

    Args:
        plan: what was found; one that is `verifiable`.
        model: whose loss it is held against.
        piece: of `to_verify`.
    """
    try:
        output = plan.call.run(model, piece, with_labels=True)
    except IndexError:  # a label of no class, where nothing says what the classes are
        reduced_losses(plan.call, model, piece)  # names its row
        raise
    own = loss_of(output, model)
    if own is None:
        return
    if plan.kind == "model":
        check_reduced(plan.call, model, piece, own)
        return
    plan.check_batch(piece)
    ours = reduced(plan, logits_of(output), piece)
    if ours is None or not bool(ours.isfinite()):
        return
    # a mean over nothing is no number: where ours has something, labels of some class mean none
    nothing = bool(own.isnan()) and float(ours) != 0
    close = abs(float(ours) - float(own)) <= 2 * tolerances(own, model)[1]
    if not nothing and (close or not bool(own.isfinite())):
        return
    raise ValueError(
        f"the model's own loss of {plan.call.samples.size(piece)} samples is {float(own):.5g}, and "
        f"{float(ours):.5g} as assumed "
        f"({plan.describe()}): pass loss_fn= with what it trains (class weights, smoothing, ignore_index), "
        "or losses=lambda model, batch: … that returns one loss per sample"
    )


def _message(plan: Plan, trained: str, scored: str) -> str:
    return (
        f"the loss that is trained {trained}, not {scored} as for what is scored ({plan.describe()}): "
        "pass loss_fn= with the loss of your training step (its weights, smoothing, shift and "
        "ignore_index), or losses=lambda model, batch: … that returns one loss per sample"
    )
