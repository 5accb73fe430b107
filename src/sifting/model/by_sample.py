"""Exact losses of each sample from what gives them whole: the user's function, or the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from sifting.model.call import Call
from sifting.model.matching import tolerances
from sifting.model.own_loss import loss_of
from sifting.model.parts import IGNORE

MOST_IGNORED = 16  # numbers that are tried as the one that means no label

# `losses(model, batch)`: one value per sample.
Losses = Callable[[nn.Module, Any], Tensor]


def given_losses(losses: Losses, call: Call, model: nn.Module, batch: Any) -> Tensor:
    """Each sample's loss by the user's function of model and batch, checked to be one per sample.

    >>> losses = lambda model, x: model(x).square().mean(1)
    >>> given_losses(losses, Call(), nn.Identity(), torch.ones(3, 2))
    tensor([1., 1., 1.])

    What samples are compared with is the batch that is given: a contrastive loss is that among
    the candidates, or among those of one piece with `score_batch_size`.
    """
    size = call.samples.size(batch)
    values = losses(model, batch)
    if not isinstance(values, Tensor) or values.shape != (size,):
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ValueError(
            f"losses= gave {got} for {size} samples: return a tensor of shape ({size},), one loss for each, "
            "with reduction='none' and a mean over all but the first dimension"
        )
    return values.detach().float()


def reduced_losses(
    call: Call, model: nn.Module, batch: Any, *, rows: Tensor | None = None
) -> Tensor:
    """Each sample's loss from a model that only gives a batch's: one sample at a time.

    Args:
        rows: the rows of these samples in a batch, where they are only some of it.
    """
    size = call.samples.size(batch)
    losses = []
    for i in range(size):
        sample = call.samples.take(batch, torch.tensor([i]), size=size)
        labels = call.labels_of(sample).values()
        if labels and all(not v.is_floating_point() and bool((v == IGNORE).all()) for v in labels):
            losses.append(torch.zeros(()))  # no label, nothing to learn: the lowest score
            continue
        try:
            loss = loss_of(call.run(model, sample, with_labels=True), model)
        except IndexError as error:  # torch: "Target 77 is out of bounds."
            shown = {name: value[0].tolist() for name, value in call.labels_of(sample).items()}
            row = i if rows is None else int(rows[i])
            raise ValueError(
                f"the model's own loss failed on row {row}, whose labels are {shown}: {error} Correct them, or "
                "pass loss_fn= on its logits"
            ) from error
        if loss is None:
            raise ValueError(
                "the model returned neither logits nor a loss that can be read: return a scalar loss, an "
                "output with .loss or .logits, or pass forward= that returns the logits"
            )
        losses.append(loss.float().reshape(()))
    device = losses[-1].device
    return torch.stack([loss.to(device) for loss in losses])


def most_frequent(labels: Tensor) -> list[int]:
    """Numbers that labels have most often: any of them may mean that there is none.

    >>> most_frequent(torch.tensor([[3, 7, 3], [3, 0, 0]]))
    [3, 0, 7]
    """
    numbers, often = torch.unique(labels, return_counts=True)
    return [int(n) for n in numbers[often.argsort(descending=True)][:MOST_IGNORED].tolist()]


def check_reduced(call: Call, model: nn.Module, batch: Any, whole: Tensor) -> None:
    """Raise where a model's loss of a batch is no mean or sum of its samples' own.

    Class weights are lost in a mean over one sample, and a contrastive loss has nothing to
    compare with there. A loss that differs from call to call (noise) is not held to it.

    Args:
        whole: the model's loss of the batch.
    """
    if call.samples.size(batch) < 2 or not bool(whole.isfinite()):
        return
    alone_B = reduced_losses(call, model, batch)
    if not bool(alone_B.isfinite().all()):
        return  # what is broken is said of the scores
    ways = [alone_B.mean(), alone_B.sum()]
    for labels in call.labels_of(batch).values():
        if labels.is_floating_point() or len(labels) != len(alone_B):
            continue
        flat_BX = labels.reshape(len(labels), -1).to(alone_B.device)
        for number in [IGNORE, *(most_frequent(flat_BX) if flat_BX.shape[1] > 1 else ())]:
            for kept_BX in (flat_BX, flat_BX[:, 1:]):
                count_B = (kept_BX != number).sum(dim=1)
                ways.append((alone_B * count_B).sum() / count_B.sum().clamp_min(1))
    rounding, tolerance = tolerances(whole, model)
    if any(abs(float(way) - float(whole)) <= 10 * rounding for way in ways):
        return
    again = loss_of(call.run(model, batch, with_labels=True), model)
    if again is None or abs(float(again) - float(whole)) > tolerance:
        return
    raise ValueError(
        f"the model's loss of {len(alone_B)} samples is {float(whole):.4g}, and {float(alone_B.mean()):.4g} "
        "on average for them one by one: it weighs or compares them with one another (class weights, "
        "contrast), so their own losses cannot be taken from it. Pass loss_fn= on its logits, or "
        "losses=lambda model, batch: … that returns one loss per sample"
    )
