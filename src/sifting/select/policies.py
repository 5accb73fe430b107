"""From scores to which samples are trained, and with what weights: pure functions.

Shapes: B candidates, K kept. Indices come back in ascending order, so a batch keeps the
order its loader gave it, and keeping everything changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

Policy = Literal["top", "random", "percentile", "proportional"]
POLICIES: tuple[str, ...] = get_args(Policy)

# Least inclusion probability under "proportional", as a share of uniform sampling's: a sample
# that could never be drawn would bias the weighted mean, and a rarer one would get a huge weight.
FLOOR = 0.01


@dataclass(frozen=True)
class Choice:
    """What was chosen among B candidates.

    Attributes:
        indices_K: the chosen candidates, ascending.
        weights_K: what to multiply each one's loss by; all ones unless the policy corrects for
            its own bias. `(weights * losses).mean()` then estimates, without bias, the mean loss
            of the candidates that were not trimmed or dropped.
        explored_K: which of them were random picks rather than the policy's.
        explored: how many those are.
    """

    indices_K: Tensor
    weights_K: Tensor
    explored_K: Tensor
    explored: int = 0


def choose(
    scores_B: Tensor,
    count: int,
    *,
    generator: torch.Generator,
    policy: Policy = "top",
    beta: float = 1.0,
    trim: float = 0.0,
    explore: float = 0.0,
) -> Choice:
    """Choose `count` candidates by their scores.

    >>> g = torch.Generator().manual_seed(0)
    >>> choose(torch.tensor([0.1, 0.9, 0.5, 0.7]), 2, generator=g).indices_K
    tensor([1, 3])

    Args:
        scores_B: one score a candidate; one of −inf is kept only where others do not suffice.
        count: how many to keep, from 1 to B.
        generator: the CPU source of every random choice made here.
        policy: "top" keeps the highest scores; "random" ignores them; "percentile" draws with
            probability growing as (rank/B)^beta; "proportional" draws with probability
            proportional to the score and returns the weights that make up for it.
        beta: exponent of "percentile"; 0 is uniform, large approaches "top".
        trim: share of the candidates with the most extreme scores that is never kept.
        explore: share of the kept that is drawn at random from what the policy left.
    """
    size = scores_B.shape[0]
    if not 1 <= count <= size:
        raise ValueError(f"count={count}: choose between 1 and the {size} candidates")
    if count == size:
        every = torch.arange(size, device=scores_B.device)
        return Choice(every, _ones(every), torch.zeros_like(every, dtype=torch.bool))
    ranked_B = scores_B.argsort(descending=True, stable=True)
    trimmed = math.floor(trim * size + 1e-9)
    if trimmed > size - count:
        raise ValueError(
            f"trim={trim} takes {trimmed} of {size} candidates and {count} are to be kept: lower one"
        )
    sound = size - int((scores_B == -math.inf).sum())
    pool_P = ranked_B[trimmed : max(sound, trimmed + count)]  # best first, without the dropped
    random_count = explored_count(explore, count, generator)
    ruled_count = count - random_count

    inclusion_P: Tensor | None = None
    pool = pool_P.shape[0]
    if policy == "top":
        ruled_R = torch.arange(ruled_count)
    elif policy == "random":
        ruled_R = torch.randperm(pool, generator=generator)[:ruled_count]
    elif policy == "percentile":
        rank_P = torch.arange(pool, 0, -1, dtype=torch.float64) / pool
        ruled_R = _without_replacement(rank_P.pow(beta), ruled_count, generator)
    elif policy == "proportional":
        inclusion_P = inclusion_probabilities(scores_B[pool_P].double().cpu(), ruled_count)
        ruled_R = _systematic(inclusion_P, ruled_count, generator)
    else:
        raise ValueError(f"policy={policy!r} is unknown: choose one of {', '.join(POLICIES)}")

    taken_P = torch.zeros(pool, dtype=torch.bool)
    taken_P[ruled_R] = True
    rest = (~taken_P).nonzero().squeeze(1)
    random_R = rest[torch.randperm(rest.shape[0], generator=generator)[:random_count]]

    places_K = torch.cat([ruled_R, random_R])
    explored_K = torch.arange(count) >= ruled_count
    weights_K = torch.ones(count)
    if inclusion_P is not None:
        # given the rule's picks, each candidate left is explored with the same probability
        by_chance = random_count / max(1, pool - ruled_count)
        chance_P = inclusion_P + (1 - inclusion_P) * by_chance
        weights_K = (count / (pool * chance_P[places_K])).float()

    device = scores_B.device
    indices_K, order_K = pool_P[places_K.to(device)].sort()
    return Choice(
        indices_K, weights_K.to(device)[order_K], explored_K.to(device)[order_K], random_count
    )


@dataclass(frozen=True)
class Rule:
    """A way of choosing with its settings checked; `choose` says what they mean.

    >>> Rule(policy="percentile", beta=2.0).policy
    'percentile'
    """

    policy: Policy = "top"
    beta: float = 1.0
    trim: float = 0.0
    explore: float = 0.0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(
                f"policy={self.policy!r} is unknown: choose one of {', '.join(POLICIES)}"
            )
        for name in ("beta", "trim", "explore"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name}={value!r}: give a number")
        if not 0 <= self.beta < math.inf:
            raise ValueError(f"beta={self.beta!r} must be a finite number of at least 0")
        if not 0 <= self.trim < 1:
            raise ValueError(
                f"trim={self.trim!r} is not in [0, 1): it is a share of the candidates"
            )
        if not 0 <= self.explore <= 1:
            raise ValueError(
                f"explore={self.explore!r} is not in [0, 1]: it is a share of the kept"
            )

    def __call__(self, scores_B: Tensor, count: int, generator: torch.Generator) -> Choice:
        """Choose `count` candidates."""
        return choose(
            scores_B,
            count,
            generator=generator,
            policy=self.policy,
            beta=self.beta,
            trim=self.trim,
            explore=self.explore,
        )


def explored_count(explore: float, count: int, generator: torch.Generator) -> int:
    """How many of `count` kept samples are random picks: the share, rounded at random.

    >>> explored_count(0.25, 32, torch.Generator())
    8

    Rounding at random keeps the share right over many batches when few samples are kept.
    """
    exact = explore * count
    whole = math.floor(exact + 1e-9)
    rest = exact - whole
    if rest > 1e-9:
        whole += float(torch.rand((), generator=generator)) < rest
    return whole


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


def _ones(like: Tensor) -> Tensor:
    return torch.ones(like.shape[0], device=like.device)
