"""Asking the loss predictor of a batch that was rehearsed. Shapes: B samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from sifting.exits.auto import PREDICTED, AutoExit
from sifting.exits.scoring import Scorer


def predict(
    scorer: Scorer,
    exit: AutoExit,
    batch: Any,
    scores: Mapping[str, Tensor],
    ids: Sequence[Any] | None,
    *,
    note: bool = True,
) -> dict[str, Tensor]:
    """What the predictor says of a batch, by its name; nothing where it cannot tell.

    Args:
        scorer: of an autopilot.
        exit: its exit, which has the predictor.
        batch: that was rehearsed.
        scores: that rehearsing it gave.
        ids: of its samples, where they are known.
        note: whether its exact losses will be learned from.
    """
    scores_B = scores.get(exit.looks)
    if scores_B is None or scorer.plan is None or batch is None:
        return {}
    moved = scorer.moved(batch)
    with torch.no_grad():
        found_B = exit.predicted(scorer.plan, scorer.model, moved, scores_B, ids, note=note)
    return {} if found_B is None else {PREDICTED: found_B}
