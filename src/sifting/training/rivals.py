"""Rules of other methods, for arms to be compared with. Pure.

Shapes: P candidates, K of them kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from sifting.selection.policies import Draw


@dataclass(frozen=True)
class BelowMean:
    """Keeps what scores above the mean, and draws among the rest, weighted to make up for it.

    >>> scores = torch.tensor([9.0, 2.0, 1.0, 0.0])
    >>> drawn = BelowMean().draw(scores, 2, torch.Generator())
    >>> int(drawn.places_K[0]), [round(float(chance), 2) for chance in drawn.inclusion_P]
    (0, [1.0, 0.33, 0.33, 0.33])

    InfoBatch's rule (Qin et al., ICLR 2024), on batches of a fixed size: what share of the candidates
    below the mean is dropped follows from how many are above it, instead of the other way round.
    Where more than are wanted are above it, all have the same chance.
    """

    name: ClassVar[str] = "below-mean"
    scored: ClassVar[bool] = True
    weighted: ClassVar[bool] = True

    def draw(self, scores_P: Tensor, count: int, generator: torch.Generator) -> Draw:
        known_P = scores_P[scores_P.isfinite()].double()
        mean = known_P.mean() if len(known_P) else torch.tensor(0.0)
        above_P = (scores_P.double() >= mean).cpu()
        pool, above = len(scores_P), int(above_P.sum())
        if above >= count:
            places_K = torch.randperm(pool, generator=generator)[:count]
            return Draw(places_K, torch.full((pool,), count / pool, dtype=torch.float64))
        rest = (~above_P).nonzero()[:, 0]
        drawn = rest[torch.randperm(len(rest), generator=generator)[: count - above]]
        chance = (count - above) / len(rest)
        inclusion_P = torch.where(above_P, 1.0, torch.tensor(chance, dtype=torch.float64))
        return Draw(torch.cat([above_P.nonzero()[:, 0], drawn]), inclusion_P)
