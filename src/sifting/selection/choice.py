"""From scores to which samples are trained, and with what weights: pure functions.

Shapes: B candidates, P of them that may be kept, K kept. Indices come back in ascending order, so
that a batch keeps the order its loader gave it, and keeping everything changes nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sifting.selection.policies import POLICIES, ByFunction, Policy, Top


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
    policy: Policy = POLICIES["top"],
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
        policy: how to choose.
        trim: share of the candidates with the most extreme scores that is never kept.
        explore: share of the kept that is drawn at random from what the policy left.
    """
    size = scores_B.shape[0]
    if not 1 <= count <= size:
        raise ValueError(f"count={count}: choose between 1 and the {size} candidates")
    if count == size:
        every = torch.arange(size, device=scores_B.device)
        return Choice(every, _ones(every), torch.zeros_like(every, dtype=torch.bool))
    sorted_B, ranked_B = scores_B.sort(descending=True, stable=True)
    trimmed = math.floor(trim * size + 1e-9)
    if trimmed > size - count:
        raise ValueError(
            f"trim={trim} takes {trimmed} of {size} candidates and {count} are to be kept: lower one"
        )
    sound = size
    if sorted_B[-1].item() == -math.inf:
        sound -= int((scores_B == -math.inf).sum())
    pool_P, scores_P = ranked_B, sorted_B
    if trimmed or sound < size:  # best first, without the dropped
        among = slice(trimmed, max(sound, trimmed + count))
        pool_P, scores_P = ranked_B[among], sorted_B[among]
    if isinstance(policy, ByFunction):
        pool_P = pool_P.sort().values  # as the user's batch has them
        scores_P = scores_B[pool_P]
    random_count = explored_count(explore, count, generator)
    ruled_count = count - random_count
    drawn = policy.draw(scores_P, ruled_count, generator)
    pool, places_K = pool_P.shape[0], drawn.places_K.cpu()
    order = torch.randperm(pool - ruled_count, generator=generator)  # of what the policy left
    if random_count:
        taken_P = torch.zeros(pool, dtype=torch.bool)
        taken_P[places_K] = True
        rest = (~taken_P).nonzero().squeeze(1)
        places_K = torch.cat([places_K, rest[order[:random_count]]])

    device = scores_B.device
    indices_K, order_K = pool_P.index_select(0, places_K.to(device)).sort()
    weights_K = torch.ones(count, device=device)
    if drawn.inclusion_P is not None:
        # given the policy's picks, each candidate left is explored with the same probability
        by_chance = random_count / max(1, pool - ruled_count)
        chance_P = drawn.inclusion_P + (1 - drawn.inclusion_P) * by_chance
        weights_K = (count / (pool * chance_P[places_K])).float().to(device)[order_K]
    # the policy's picks come first among the places
    explored_K = order_K >= ruled_count
    return Choice(indices_K, weights_K, explored_K, random_count)


@dataclass(frozen=True)
class Rule:
    """A policy with what goes around it, checked; `choose` says what they mean.

    >>> Rule(explore=0.25)
    Rule(policy=Top(), trim=0.0, explore=0.25)
    """

    policy: Policy = field(default_factory=Top)
    trim: float = 0.0
    explore: float = 0.0

    def __post_init__(self) -> None:
        for name in ("trim", "explore"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise TypeError(f"{name}={value!r}: give a number")
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


def _ones(like: Tensor) -> Tensor:
    return torch.ones(like.shape[0], device=like.device)
