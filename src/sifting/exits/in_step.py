"""Scoring a sharded model: every rank runs it equally often, whatever its data."""

from __future__ import annotations

from dataclasses import replace

from sifting.model.plan import Plan
from sifting.parallel.detect import gathers_inside


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
