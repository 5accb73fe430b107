"""How good a choice was, by the exact losses of its candidates: pure functions.

Shapes: B candidates, K kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Quality:
    """How good one choice was, by the exact losses of its candidates.

    Attributes:
        recall: share of the K highest exact losses that were kept; about K/B at random.
        rank_correlation: Spearman's, between scores and exact losses.
        rho_approx: mean exact loss of the kept over that of the candidates. The speed-up in
            steps is at most this; below 1 the choice was worse than a random one.
    """

    recall: float
    rank_correlation: float
    rho_approx: float


def quality(
    scores_B: Tensor, exact_B: Tensor, indices_K: Tensor, *, worth_B: Tensor | None = None
) -> Quality:
    """Judge a choice by the exact losses.

    >>> quality(torch.tensor([1., 2., 3., 4.]), torch.tensor([1., 2., 3., 4.]), torch.tensor([2, 3]))
    Quality(recall=1.0, rank_correlation=1.0, rho_approx=1.4)

    Args:
        scores_B: by which was chosen.
        exact_B: exact losses.
        indices_K: the kept.
        worth_B: what ρ is the ratio of, where it is not the exact losses as they are.
    """
    exact_B = exact_B.double().cpu()
    kept_K = indices_K.cpu()
    best_K = exact_B.argsort(descending=True, stable=True)[: len(kept_K)]
    worth_B = exact_B if worth_B is None else worth_B.double().cpu()
    mean = float(worth_B.mean())
    return Quality(
        recall=float(torch.isin(best_K, kept_K).double().mean()),
        rank_correlation=rank_correlation(scores_B.double().cpu(), exact_B),
        rho_approx=float(worth_B[kept_K].mean()) / mean if mean > 0 else 1.0,
    )


def rho_tokens(sums_B: Tensor, lengths_B: Tensor, indices_K: Tensor) -> float | None:
    """Loss per token of the kept over that of the candidates; None where there is no loss.

    >>> rho_tokens(torch.tensor([30.0, 10.0]), torch.tensor([10, 10]), torch.tensor([0]))
    1.5

    Times the share of the tokens that is kept, it is the share of the loss that is.

    Args:
        sums_B: losses of all tokens of each candidate together.
        lengths_B: tokens of each, those without a label too: they are paid for.
        indices_K: the kept.
    """
    sums_B, lengths_B, kept_K = sums_B.double().cpu(), lengths_B.double().cpu(), indices_K.cpu()
    if not bool(sums_B.isfinite().all()) or not float(sums_B.sum()) > 0:
        return None
    kept = float(sums_B[kept_K].sum() / lengths_B[kept_K].sum())
    return kept / float(sums_B.sum() / lengths_B.sum())


def rank_correlation(a_B: Tensor, b_B: Tensor) -> float:
    """Spearman's rank correlation, ties sharing their mean rank; 0 where one side is constant.

    >>> rank_correlation(torch.tensor([1.0, 5.0, 9.0]), torch.tensor([3.0, 2.0, 1.0]))
    -1.0
    """
    ranks = torch.stack([_mean_ranks(a_B), _mean_ranks(b_B)])
    centred = ranks - ranks.mean(dim=1, keepdim=True)
    norm = centred.norm(dim=1).prod()
    return round(float((centred[0] * centred[1]).sum() / norm), 12) if norm > 0 else 0.0


def _mean_ranks(values_B: Tensor) -> Tensor:
    found: tuple[Tensor, Tensor, Tensor] = torch.unique(
        values_B, return_inverse=True, return_counts=True
    )
    _, inverse_B, counts_U = found
    last_U = counts_U.cumsum(0).double()
    return (last_U - (counts_U - 1) / 2)[inverse_B]
