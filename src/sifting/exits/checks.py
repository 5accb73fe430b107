"""What every scoring pass must hold: a score for each sample, and as many forwards on every rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sifting.data.samples import Samples
from sifting.data.tree import describe
from sifting.model.plan import Plan
from sifting.parallel.detect import gathers_inside


def check_count(samples: Samples, batch: Any, count: int) -> None:
    """Raise where there is not one score for each sample."""
    size = samples.size(batch)
    if count == size:
        return
    if samples.documents(batch) is not None:
        raise ValueError(
            f"the batch is packed, {size} documents in {count} rows, and what is scored has one value a "
            "row: leave loss_fn= and score= to the library where the model trains cross-entropy, or pass "
            "losses=lambda model, batch: … that returns one loss a document"
        )
    raise ValueError(
        f"the batch holds {size} samples ({describe(batch)}), and the model's outputs make {count} scores of "
        "it: say how many samples there are with batch_size=, and how to take some of them with "
        "take=lambda batch, indices: … where they are not along the first dimension; or pass forward= "
        "that returns a row for each sample"
    )


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
