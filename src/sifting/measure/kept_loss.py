"""How much of the loss the kept carry, and how well their gradient agrees: pure functions.

Shapes: B candidates, K kept, C outputs, H features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor


def kept_loss(
    scores_B: Tensor, losses_B: Tensor, ratio: float, *, costs_B: Tensor | None = None
) -> float:
    """μ(R): the share of the candidates' exact loss that the kept one in R carry.

    >>> import torch
    >>> kept_loss(torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([5.0, 3.0, 1.0, 1.0]), 2)
    0.8

    Dropping the rest moves the mean gradient by at most √(2L·(1 − μ)·F).

    Args:
        scores_B: by which is kept.
        losses_B: exact losses; of documents, the sum over their tokens.
        ratio: of how many one is kept.
        costs_B: what each costs (its tokens), where one in R of the costs is kept instead: in the
            order of the scores, the last one as far as it fits.
    """
    losses_B = losses_B.double().cpu()
    total = float(losses_B.sum())
    if total <= 0:
        return 1 / ratio  # nothing is left to learn: no better than at random
    if costs_B is not None:
        order_B = scores_B.cpu().argsort(descending=True, stable=True)
        spent_B = costs_B.double().cpu()[order_B].cumsum(0)
        budget = float(spent_B[-1]) / ratio
        before_B = spent_B - costs_B.double().cpu()[order_B]
        part_B = ((budget - before_B) / (spent_B - before_B)).clamp(0, 1)
        return float((part_B * losses_B[order_B]).sum()) / total
    count = max(1, math.ceil(len(losses_B) / ratio))
    best_K = scores_B.cpu().argsort(descending=True, stable=True)[:count]
    return float(losses_B[best_K].sum()) / total


@dataclass(frozen=True)
class GradientAgreement:
    """How well an update on the kept agrees with the mean gradient; sums, so that audits add up.

    Each audit is divided by its own mean squared norm, so that none outweighs the others where
    gradients are large.

    Attributes:
        kept: mean product of a kept sample's gradient with another's.
        kept_norm: mean product among the kept: the squared norm of their mean.
        all: mean product of two samples' gradients.
        all_norm: expected squared norm of the mean of as many at random.
    """

    kept: float = 0.0
    kept_norm: float = 0.0
    all: float = 0.0
    all_norm: float = 0.0

    def __add__(self, other: GradientAgreement) -> GradientAgreement:
        return GradientAgreement(
            self.kept + other.kept,
            self.kept_norm + other.kept_norm,
            self.all + other.all,
            self.all_norm + other.all_norm,
        )

    def faded(self, factor: float) -> GradientAgreement:
        """The same with less weight beside later audits."""
        return GradientAgreement(*(factor * value for value in vars(self).values()))

    @property
    def value(self) -> float:
        """Against a random batch's; not a number where the mean gradient cannot be told from noise.

        >>> GradientAgreement(kept=0.2, kept_norm=0.4, all=0.1, all_norm=0.1).value
        1.0
        """
        if self.all <= 0 or self.kept_norm <= 0 or self.all_norm <= 0:
            return math.nan
        return (self.kept / math.sqrt(self.kept_norm)) / (self.all / math.sqrt(self.all_norm))


def products(errors_BC: Tensor, features_BH: Tensor | None) -> Tensor:
    """Products of the samples' gradients by the last layer, from its errors and what it is given.

    Args:
        errors_BC: derivative of each sample's loss by its outputs; p − y for cross-entropy.
        features_BH: of the last layer; None where they are not known, and only its bias is
            looked at.
    """
    errors_BC = errors_BC.double().flatten(1)
    gram_BB = errors_BC @ errors_BC.T
    if features_BH is None:
        return gram_BB
    features_BH = features_BH.double().flatten(1)
    return gram_BB * (features_BH @ features_BH.T + 1)


def agreement(gram_BB: Tensor, kept_K: Tensor) -> GradientAgreement:
    """Agreement of the kept samples' gradients with the mean one.

    >>> import torch
    >>> errors = torch.tensor([[1.0, -1.0], [1.0, -1.0], [0.1, -0.1], [0.1, -0.1]])
    >>> round(agreement(products(errors, None), torch.tensor([0, 1])).value, 2)
    1.04

    Args:
        gram_BB: products of the samples' gradients.
        kept_K: the kept.
    """
    size, count = len(gram_BB), len(kept_K)
    diagonal_B = gram_BB.diagonal()
    scale = float(diagonal_B.mean())
    if size < 2 or count < 1 or not scale > 0:
        return GradientAgreement()
    others_B = gram_BB.sum(dim=1) - diagonal_B
    kept = float(others_B[kept_K].mean()) / (size - 1)
    everyone = float(others_B.mean()) / (size - 1)
    return GradientAgreement(
        kept / scale,
        float(gram_BB[kept_K][:, kept_K].mean()) / scale,
        everyone / scale,
        1 / count + (1 - 1 / count) * everyone / scale,
    )
