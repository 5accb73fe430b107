"""Scores that are not finite: named, or ranked last. Pure."""

from __future__ import annotations

import math

from torch import Tensor


class NotFinite(ValueError):
    """Scores that are not finite: broken samples, or a model that has diverged."""


def finite(scores_B: Tensor, *, drop: bool) -> Tensor:
    """The scores, those that are not finite ranked last where they are to be dropped.

    >>> import torch
    >>> finite(torch.tensor([1.0, float("nan")]), drop=True)
    tensor([1., -inf])
    """
    if math.isfinite(scores_B.sum().item()):  # of one that is not, the sum is not either
        return scores_B
    broken_B = ~scores_B.isfinite()
    if not bool(broken_B.any()):
        return scores_B  # they were only too large to be added
    if drop:
        return scores_B.masked_fill(broken_B, -math.inf)
    rows = broken_B.nonzero().squeeze(1).tolist()
    shown = ", ".join(map(str, rows[:8])) + (", …" if len(rows) > 8 else "")
    raise NotFinite(
        f"the scores of {len(rows)} of {len(scores_B)} candidates are not finite (rows {shown}): look "
        "at these samples and at the model's weights; nonfinite='drop' ranks such samples last"
    )
