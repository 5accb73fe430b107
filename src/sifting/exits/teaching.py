"""Lessons for ways of scoring that are not in use, so that they are not judged by heads that know little. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sifting.measure.costs import WayCost

SHARE = 0.01  # of the time of the steps between two looks
FEW = 32  # lessons at least, where there is time: rather a few ways than all of them too little
MOST = 128  # lessons: heads rank hardly better after more


def lessons(costs: Sequence[WayCost], steps: int) -> tuple[list[str], int]:
    """Which ways learn just before they are looked at again, and on the candidates of how many steps.

    >>> near = WayCost("near", cost=0.1, rank_correlation=0.5, recall=0.7, kept_loss=0.6)
    >>> far = WayCost("far", cost=0.4, rank_correlation=0.5, recall=0.7, kept_loss=0.6)
    >>> lessons([near, far], steps=400)
    (['near'], 40)
    >>> lessons([near, far], steps=3200)
    (['near', 'far'], 64)

    Those nearest to being used come first. A lesson takes as long as scoring does, and all of them
    together `SHARE` of the steps' time at most.

    Args:
        costs: of ways that have something to learn, the best net gain first.
        steps: from one look to the next.
    """
    pupils: list[str] = []
    price, many = 0.0, 0
    for way in costs:
        if not way.known:
            continue
        afford = SHARE * steps / (price + way.cost) if price + way.cost > 0 else math.inf
        if afford >= (FEW if pupils else 1):
            pupils.append(way.name)
            price, many = price + way.cost, int(min(afford, MOST, steps))
    return pupils, many
