"""What every scoring pass must hold: a score for each sample, and as many forwards on every rank."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from sifting.data.samples import Samples
from sifting.data.tree import describe
from sifting.model.call import Call
from sifting.model.plan import Plan
from sifting.parallel.detect import gathers_inside


def check_count(samples: Samples, batch: Any, count: int) -> None:
    """Raise where there is not one score for each sample."""
    size = samples.size(batch)
    if count == size:
        return
    if samples.documents(batch) is not None:
        raise ValueError(
            f"the batch is packed, {size} documents in {count} rows, and what is scored has one value per "
            "row: leave loss_fn= and score= to the library where the model trains cross-entropy, or pass "
            "losses=lambda model, batch: … that returns one loss per document"
        )
    raise ValueError(
        f"the batch holds {size} samples ({describe(batch)}), and the model's outputs make {count} scores of "
        "it: say how many samples there are with batch_size=, and how to take some of them with "
        "take=lambda batch, indices: … where they are not along the first dimension; or pass forward= "
        "that returns a row for each sample"
    )


def check_take(call: Call, batch: Any) -> None:
    """Raise where a user's `take=` gives other samples than it is asked for, as their labels tell.

    >>> batch = (torch.zeros(4, 2), torch.arange(4))
    >>> check_take(Call(take=lambda batch, indices: (batch[0][:2], batch[1][:2])), batch)
    Traceback (most recent call last):
    ValueError: take= gave samples with labels [0, 1] for the indices [1, 3], which have [1, 3]: return a ...
    """
    samples = call.samples
    size = samples.size(batch)
    if samples.take_with is None or size < 2:
        return
    asked_K = torch.arange(1, size, 2)
    taken = call.labels_of(samples.take(batch, asked_K, size=size))
    for name, labels in call.labels_of(batch).items():
        if name not in taken or labels.is_nested or len(labels) != size:
            continue
        found, wanted = taken[name], labels[asked_K.to(labels.device)]
        # of another shape: packed, or padded anew
        if found.shape == wanted.shape and not same_values(found, wanted):
            raise ValueError(
                f"take= gave samples with {name} {found[:4].tolist()} for the indices {asked_K[:4].tolist()}, "
                f"which have {wanted[:4].tolist()}: return a batch of just the samples at the indices, in their "
                "order"
            )


def same_values(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors hold the same, what is not a number included."""
    if one.is_floating_point() and other.is_floating_point():
        return bool(torch.isclose(one, other, equal_nan=True).all())
    return torch.equal(one, other)


def by_sample(
    samples: Samples, probe: Any, features: Callable[[Any], Tensor], *, who: str, instead: str
) -> Tensor:
    """What an exit finds for some samples; raises where that has not a row for each of them.

    >>> first_image = torch.zeros(3, 8, 8)  # whose colour channels are as many as the samples
    >>> by_sample(Samples(), torch.zeros(3, 5), lambda _: first_image, who="it", instead="…")
    Traceback (most recent call last):
    ValueError: it needs a row for each sample, and 2 samples come as (3, 8, 8): …

    A number of rows may be the number of samples by chance, so it is asked with one sample fewer, too.

    Args:
        samples: how batches divide.
        probe: some samples.
        features: what the exit finds for a batch.
        who: the exit, for people.
        instead: what else there is, for people.
    """
    size = samples.size(probe)
    found = told = features(probe)
    if found.size(0) == size > 1:
        size -= 1
        told = features(samples.take(probe, torch.arange(size), size=size + 1))
    if told.size(0) != size:
        if samples.documents(probe) is not None:
            instead = (
                "they are documents packed into rows, and what is scored is no cross-entropy that could be told "
                "by its positions: choose exit='last' or a block's number, such as exit=1, or leave out packing "
                "(TRL: packing=False, padding_free=False)"
            )
        raise ValueError(
            f"{who} needs a row for each sample, and {size} samples come as {describe(told)}: {instead}"
        )
    return found


def in_step(plan: Plan) -> Plan:
    """A plan that makes as many collectives on every rank of a sharded model, whatever its data."""
    if plan.kind == "model":
        raise ValueError(
            "the loss of this model would have to be taken from it one labelled sample at a time, and ranks "
            "of a sharded model have to run it equally often: pass forward= that returns the logits, and "
            "loss_fn="
        )
    # how often a head is called depends on how many positions have labels
    heads = {name: head for name, head in plan.heads.items() if not gathers_inside(head.module)}
    return replace(plan, heads=heads)
