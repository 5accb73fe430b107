"""Which positions of a sequence are scored: those with a label, or a sample of them.

Shapes: B rows of T positions, N positions that count, S samples, M drawn of each.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from sifting.model.parts import Part, Score
from sifting.model.plan import Plan
from sifting.model.positions import Places

RowCount = int | Literal["labelled"]
LABELLED = "labelled"


def check_count(rows: object) -> None:
    """Raise unless this is what `rows=` can be."""
    if rows is None or rows == LABELLED:
        return
    if isinstance(rows, bool) or not isinstance(rows, int) or rows < 1:
        raise ValueError(
            f"rows={rows!r}: give how many labelled positions of each sequence are scored, a whole number "
            "from 1; or 'labelled' for all of them, and nothing else"
        )


def check_sampled(plan: Plan, rows: RowCount, score: Score) -> None:
    """Raise where a model has no labelled positions to sample from."""
    if not positional(plan):
        raise ValueError(
            f"rows={rows!r} is of labelled positions, and this model makes one prediction per sample "
            f"({plan.describe()}): leave rows= out; view= shows less of each sample"
        )
    if (score == "loss" and plan.kind != "parts") or (callable(score) and not plan.by_rows):
        what = "score=" if callable(score) else plan.describe()
        raise ValueError(
            f"rows={rows!r} needs a score of each position by itself, and {what} takes a sample whole: leave "
            "rows= out, or choose score='entropy'"
        )


def sampled(plan: Plan, batch: Any, rows: RowCount, generator: torch.Generator) -> Plan:
    """The plan for one batch in which only some labelled positions of each sample count.

    Args:
        plan: how the model is scored.
        batch: what is scored.
        rows: how many of each sample; those that have fewer keep them all.
        generator: that they are drawn from.
    """
    documents_BT = plan.call.samples.documents(batch)
    chosen = {}
    for part in plan.parts:
        labels = plan.labels_for(part, batch)
        if labels is None or not _many(plan, part):
            continue
        mask_BT = part.labelled(labels)
        owners_BT = None
        if documents_BT is not None:
            owners_BT = documents_BT[:, part.shift :].to(mask_BT.device)
            mask_BT &= owners_BT >= 0
        if rows != LABELLED:
            mask_BT = stratified(mask_BT, int(rows), generator, documents_BT=owners_BT)
        chosen[part] = mask_BT
    return replace(plan, chosen=chosen)


def stratified(
    mask_BT: Tensor, count: int, generator: torch.Generator, *, documents_BT: Tensor | None = None
) -> Tensor:
    """Some true entries of each row: one from each of `count` stretches with as many of them.

    >>> mask_BT = torch.tensor([[1, 1, 1, 1, 0, 1, 1, 1, 1], [0, 1, 0, 0, 0, 0, 0, 0, 0]]).bool()
    >>> found = stratified(mask_BT, 2, torch.Generator().manual_seed(0))
    >>> found[:, :4].sum(dim=1), found[:, 4:].sum(dim=1)
    (tensor([1, 1]), tensor([1, 0]))

    Args:
        mask_BT: what can be drawn.
        count: how many of each row, or of each document; all where there are fewer.
        generator: on the CPU.
        documents_BT: where rows hold several samples each, which of them a position belongs to.
    """
    b_N, t_N = mask_BT.nonzero(as_tuple=True)
    owners_N = b_N
    if documents_BT is not None:
        owners_N, order_N = documents_BT[b_N, t_N].sort(stable=True)
        b_N, t_N = b_N[order_N], t_N[order_N]
    size = len(mask_BT) if documents_BT is None else int(documents_BT.max()) + 1
    counts_S = torch.bincount(owners_N, minlength=size)
    starts_S = counts_S.cumsum(0) - counts_S
    edges_M = torch.arange(count + 1, device=mask_BT.device)
    edges_SM = counts_S[:, None] * edges_M // count
    widths_SM = edges_SM.diff(dim=1)
    drawn_SM = torch.rand(size, count, generator=generator).to(mask_BT.device)
    # a stretch without any entry (fewer than `count`) has the next one's first, or none
    places_SM = starts_S[:, None] + edges_SM[:, :-1] + (drawn_SM * widths_SM).long()
    picked_N = places_SM[widths_SM > 0]
    found_BT = torch.zeros_like(mask_BT)
    found_BT[b_N[picked_N], t_N[picked_N]] = True
    return found_BT


def located(plan: Plan, batch: Any) -> Plan:
    """The plan for one batch, its scored positions looked up where the batch is.

    Args:
        plan: how the model is scored, with the positions that were drawn, if any.
        batch: what is scored, best as it was before it went to a device: nothing is waited for.
    """
    parts = [part for part in plan.parts if part.labels is not None and _many(plan, part)]
    documents_BT = plan.call.samples.documents(batch) if parts else None
    places = {}
    for part in parts:
        labels = plan.labels_for(part, batch)
        assert labels is not None
        mask_BT, theirs_BT = part.labelled(labels), None
        if documents_BT is not None:
            theirs_BT = documents_BT[:, part.shift :].to(mask_BT.device)
            if theirs_BT.shape != mask_BT.shape:
                continue  # it is said where they are scored
            mask_BT &= theirs_BT >= 0
        if part in plan.chosen:
            mask_BT &= plan.chosen[part].to(mask_BT.device)
        places[part] = Places.of(mask_BT, theirs_BT)
    return replace(plan, places=places) if places else plan


def positional(plan: Plan) -> bool:
    """Whether a model predicts a class at each of several positions."""
    return any(_many(plan, part) for part in plan.parts)


def _many(plan: Plan, part: Part) -> bool:
    """Whether a part has a class to predict at each of several positions."""
    return part.kind in ("classes", "classes_first") and len(plan.shapes[part.logits]) > 1
