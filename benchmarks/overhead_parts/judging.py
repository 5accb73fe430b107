"""How well scores rank: against exact losses, and against the scores of before."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from torch import Tensor

from sifting.measure.quality import quality, rank_correlation

# What is said of each way of scoring, in this order.
METRICS = ("as_before", "rank_correlation", "recall", "kept_loss")
Means = dict[str, dict[str, float]]


def judged(scores_B: Tensor, exact_B: Tensor, before_B: Tensor) -> list[float]:
    """Of one batch: Spearman's with the scores of before, with exact losses; recall of their top half; μ."""
    top_K = scores_B.topk(len(scores_B) // 2).indices
    found = quality(scores_B, exact_B, top_K)
    kept_loss = float(exact_B[top_K].sum() / exact_B.sum())
    return [
        rank_correlation(scores_B, before_B),
        found.rank_correlation,
        found.recall,
        kept_loss,
    ]


def means(rows: Sequence[Sequence[float]], names: Sequence[str] = METRICS) -> Means:
    """Means over batches, with their standard errors."""
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return {name: {"mean": statistics.fmean(c), "error": _error(c)} for name, c in columns}


def _error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
