"""What being ahead after a piece is worth in time: pieces trained plainly for longer are the measure.

Shapes: K draws, M held-out samples, L lengths, S resamples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

LENGTHS = (1.25, 1.5)  # of plain pieces that are trained for longer, of a piece's own
RESAMPLES = 400
SHARE = 0.95  # of the resamples that an interval holds
MOST = 4.0  # times as long as a piece, beyond which nothing is said


@dataclass(frozen=True)
class Saving:
    """Share of the time that an option saves in a piece, with its interval.

    >>> str(Saving(0.22, 0.15, 0.3))
    'saves 22 % (15 to 30)'
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"saves {100 * self.value:.0f} % ({100 * self.low:.0f} to {100 * self.high:.0f})"


def saving(plain_KM: Tensor, option_KM: Tensor, longer: Mapping[float, Tensor]) -> Saving | None:
    """How much longer plain training takes to be where an option is, as a share of that time.

    >>> plain = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    >>> found = saving(plain, plain - 0.1, {1.25: plain - 0.1, 1.5: plain - 0.2})
    >>> str(found)
    'saves 20 % (20 to 20)'

    Mean held-out loss falls with the length of a piece along a line through the plain pieces. None
    where it does not: then more training does not help, and there is nothing to be saved.

    Args:
        plain_KM: held-out losses after plain pieces of the option's time.
        option_KM: after those of the option.
        longer: after plain pieces of so many times that length.
    """
    lengths_L = torch.tensor([1.0, *longer], dtype=torch.float64)
    plain_LKM = torch.stack([plain_KM, *longer.values()]).double()
    value = _longer(lengths_L, plain_LKM.mean(dim=(1, 2)), option_KM.double().mean())
    if not 0 < float(value) < MOST:
        return None
    draws, samples = plain_KM.shape
    chance = torch.Generator().manual_seed(0)
    # by samples and by draws, each as often as there are: both are drawn by chance
    found = []
    for _ in range(RESAMPLES):
        chosen_M = torch.randint(samples, (samples,), generator=chance)
        chosen_K = torch.randint(draws, (draws,), generator=chance)
        losses_L = plain_LKM[:, chosen_K][:, :, chosen_M].mean(dim=(1, 2))
        losses = option_KM.double()[chosen_K][:, chosen_M].mean()
        found.append(_longer(lengths_L, losses_L, losses))
    found_S = torch.stack(found)
    sound_S = found_S[found_S > 0].clamp_max(MOST)
    if len(sound_S) < SHARE * RESAMPLES:  # the line may as well rise
        return None
    tail = (1 - SHARE) / 2
    low, high = (float(1 - 1 / sound_S.quantile(q)) for q in (tail, 1 - tail))
    return Saving(1 - 1 / float(value), low, high)


def _longer(lengths_L: Tensor, losses_L: Tensor, wanted: Tensor) -> Tensor:
    """The length at which a line through plain losses comes to the one wanted; below 0 if it rises."""
    across_L = lengths_L - lengths_L.mean()
    slope = (across_L * losses_L).sum() / across_L.square().sum()
    if float(slope) >= 0:
        return torch.tensor(-1.0, dtype=torch.float64)
    return lengths_L.mean() + (wanted - losses_L.mean()) / slope
