"""Policies: which candidates are kept, given their scores.

Shapes: P candidates that may be kept, K of them kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

import torch
from torch import Tensor

# Least inclusion probability under "proportional", as a share of uniform sampling's: a sample
# that could never be drawn would bias the weighted mean, and a rarer one would get a huge weight.
FLOOR = 0.01


@runtime_checkable
class Policy(Protocol):
    """A way of choosing by scores. `Percentile` is a short example."""

    @property
    def name(self) -> str:
        """What it is called in logs."""

    @property
    def scored(self) -> bool:
        """Whether it looks at the scores: where not, nothing is scored."""

    def draw(self, scores_P: Tensor, count: int, generator: torch.Generator) -> Draw:
        """Choose `count` of the candidates, whose scores come highest first."""


@dataclass(frozen=True)
class Draw:
    """What a policy chose.

    Attributes:
        places_K: places of the chosen in the scores that the policy was given.
        inclusion_P: each candidate's probability of being chosen, where the losses of the chosen
            are to be weighted by its inverse; None for no weights.
    """

    places_K: Tensor
    inclusion_P: Tensor | None = None


@dataclass(frozen=True)
class Top:
    """Keeps the highest scores: the paper's rule."""

    name: ClassVar[str] = "top"
    scored: ClassVar[bool] = True

    def draw(self, scores_P: Tensor, count: int, generator: torch.Generator) -> Draw:
        return Draw(torch.arange(count))

    def order(self, scores_P: Tensor, generator: torch.Generator) -> Tensor:
        """All candidates as they are wanted, for a budget that is no number of them."""
        return torch.arange(len(scores_P))


@dataclass(frozen=True)
class Random:
    """Ignores the scores: the control that any other policy has to beat."""

    name: ClassVar[str] = "random"
    scored: ClassVar[bool] = False

    def draw(self, scores_P: Tensor, count: int, generator: torch.Generator) -> Draw:
        return Draw(self.order(scores_P, generator)[:count])

    def order(self, scores_P: Tensor, generator: torch.Generator) -> Tensor:
        """All candidates in random order."""
        return torch.randperm(len(scores_P), generator=generator)


@dataclass(frozen=True)
class Percentile:
    """Draws with probability growing as (rank/B)^beta.

    >>> Percentile(beta=2.0)
    Percentile(beta=2.0)

    Args:
        beta: 0 is uniform, large approaches `Top`.
    """

    beta: float = 1.0
    name: ClassVar[str] = "percentile"
    scored: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.beta, bool) or not isinstance(self.beta, int | float):
            raise TypeError(f"beta={self.beta!r}: give a number")
        if not 0 <= self.beta < math.inf:
            raise ValueError(f"beta={self.beta!r} must be a finite number of at least 0")

    def draw(self, scores_P: Tensor, count: int, generator: torch.Generator) -> Draw:
        return Draw(self.order(scores_P, generator)[:count])

    def order(self, scores_P: Tensor, generator: torch.Generator) -> Tensor:
        """All candidates in a random order, the higher ranks mostly first."""
        pool = len(scores_P)
        rank_P = torch.arange(pool, 0, -1, dtype=torch.float64) / pool
        return _without_replacement(rank_P.pow(self.beta), pool, generator)


@dataclass(frozen=True)
class Proportional:
    """Draws with probability proportional to the score, and weights that make up for it."""

    name: ClassVar[str] = "proportional"
    scored: ClassVar[bool] = True
    weighted: ClassVar[bool] = True  # the losses of what it chooses
    positive: ClassVar[bool] = True  # it takes scores of at least 0 alone

    def draw(self, scores_P: Tensor, count: int, generator: torch.Generator) -> Draw:
        inclusion_P = inclusion_probabilities(scores_P.double().cpu(), count)
        return Draw(_systematic(inclusion_P, count, generator), inclusion_P)


@dataclass(frozen=True)
class ByFunction:
    """A user's function `(scores, count, generator) -> indices` as a policy.

    >>> lowest = ByFunction(lambda scores, count, generator: scores.argsort()[:count])
    >>> lowest.draw(torch.tensor([0.1, 0.9, 0.5]), 2, torch.Generator()).places_K
    tensor([0, 2])

    The function is given the scores in the order of the candidates, without those trimmed or
    dropped, and returns as many different places in them as it is asked for.

    Args:
        function: the user's.
    """

    function: Callable[[Tensor, int, torch.Generator], Tensor]
    scored: ClassVar[bool] = True

    @property
    def name(self) -> str:
        return getattr(self.function, "__name__", "a function")

    def draw(self, scores_P: Tensor, count: int, generator: torch.Generator) -> Draw:
        return Draw(self.checked(self.function(scores_P, count, generator), len(scores_P), count))

    def checked(self, found: Any, size: int, count: int) -> Tensor:
        """What the function returned, or an error that says what is wrong with it."""
        wanted = f"policy={self.name} must return {count} different indices below {size}"
        if not isinstance(found, Tensor) or found.is_floating_point() or found.ndim != 1:
            kind = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(f"{wanted}, as a tensor of whole numbers; it returned {kind}")
        places_K = found.long().cpu()
        sound = len(places_K) == count and len(set(places_K.tolist())) == count
        if not sound or not (count == 0 or 0 <= int(places_K.min()) <= int(places_K.max()) < size):
            raise ValueError(f"{wanted}; it returned {places_K.tolist()[:12]}")
        return places_K


POLICIES: Mapping[str, Policy] = {
    policy.name: policy for policy in (Top(), Random(), Percentile(), Proportional())
}


def weighted(policy: Policy) -> bool:
    """Whether the losses of what a policy chooses are to be weighted, as it says by `weighted = True`.

    >>> weighted(Proportional()), weighted(Top())
    (True, False)
    """
    return bool(getattr(policy, "weighted", False))


def find_policy(policy: Any) -> Policy:
    """The policy that the argument `policy=` stands for.

    >>> find_policy("percentile"), find_policy(Percentile(beta=3)).beta
    (Percentile(beta=1.0), 3)
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            raise ValueError(
                f"policy={policy!r} is unknown: choose one of {', '.join(POLICIES)}, an object such as "
                "Percentile(beta=2), or pass a function (scores, count, generator) -> indices"
            )
        return POLICIES[policy]
    if isinstance(policy, Policy) and not isinstance(policy, type):
        return policy
    if callable(policy) and not isinstance(policy, type):
        return ByFunction(policy)
    raise TypeError(
        f"policy={policy!r}: give a name ({', '.join(POLICIES)}), an object such as Percentile(beta=2), "
        "or a function (scores, count, generator) -> indices"
    )


def inclusion_probabilities(scores_B: Tensor, count: int) -> Tensor:
    """Probabilities of being kept, proportional to the score, at most 1, adding up to `count`.

    >>> inclusion_probabilities(torch.tensor([8.0, 1.0, 1.0]), 2)
    tensor([1.0000, 0.5000, 0.5000], dtype=torch.float64)

    A score so large that its share would exceed 1 is kept for certain, and the others share
    what is left. Scores of 0 keep a small probability, so that no sample is out of reach.
    """
    if count == 0:
        return torch.zeros(scores_B.shape[0], dtype=torch.float64)
    weights_B = scores_B.double().clone()
    weights_B[weights_B == -math.inf] = 0
    if bool((weights_B < 0).any()):
        raise ValueError(
            f"policy='proportional' needs scores of at least 0, got {weights_B.min().item():.4g}: "
            "shift the score, or choose policy='percentile', which uses only ranks"
        )
    mean = weights_B.mean()
    weights_B = weights_B + FLOOR * mean if mean > 0 else torch.ones_like(weights_B)
    chance_B = torch.zeros_like(weights_B)
    certain_B = torch.zeros_like(weights_B, dtype=torch.bool)
    for _ in range(weights_B.shape[0]):
        left = count - int(certain_B.sum())
        chance_B = weights_B * (left / weights_B[~certain_B].sum())
        chance_B[certain_B] = 1
        over_B = (chance_B > 1) & ~certain_B
        if not bool(over_B.any()):
            break
        certain_B |= over_B
    return chance_B.clamp(max=1)


def _without_replacement(weights_B: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` draws without replacement: the smallest of exponential waiting times."""
    waits_B = torch.empty_like(weights_B).exponential_(generator=generator) / weights_B
    return waits_B.argsort(stable=True)[:count]


def _systematic(chance_B: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """A sample of fixed size with exactly these inclusion probabilities.

    The probabilities are laid end to end in random order and hit by a comb of unit spacing:
    each stretch is at most one tooth wide, so it is hit with just its own probability.
    """
    if count == 0:
        return torch.empty(0, dtype=torch.long)
    order_B = torch.randperm(chance_B.shape[0], generator=generator)
    ends_B = chance_B[order_B].cumsum(0)
    ends_B[-1] = count  # against rounding: the comb has exactly `count` teeth
    teeth_K = torch.rand(1, generator=generator, dtype=torch.float64) + torch.arange(count)
    hits_K = torch.searchsorted(ends_B, teeth_K, right=True)
    return order_B[hits_K]
