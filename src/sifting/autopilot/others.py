"""What would be decided by other held-out samples: advice asks that, since a run at work has few of them.

Shapes: N held-out samples that a run at work can afford.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sifting.autopilot.deciding import decide
from sifting.autopilot.noted import Noted
from sifting.autopilot.options import PLAIN, Judged, Option

SETS = 16


@dataclass
class SampleSet:
    """Some held-out samples, and what they say.

    Attributes:
        drawn_N: which, among all that are looked at.
        option: that they decide for.
        progress: on them.
    """

    drawn_N: Tensor
    option: Option = PLAIN
    progress: Noted = field(default_factory=Noted)


class Others:
    """Sets of as many samples as a run at work looks at, each of which decides for itself.

    >>> others = Others(2, of=10)
    >>> len(others.sets), others.sets[0].drawn_N.shape
    (16, torch.Size([2]))

    Args:
        samples: that a run at work can afford.
        of: how many are looked at here.
    """

    def __init__(self, samples: int, *, of: int) -> None:
        chance = torch.Generator().manual_seed(0)
        self.sets = [SampleSet(torch.randperm(of, generator=chance)[:samples]) for _ in range(SETS)]

    def decide(self, judge: Callable[[Noted], Sequence[Judged]]) -> list[Option]:
        """What each would do from now on.

        Args:
            judge: what is known of every option, given the progress on some samples.
        """
        for one in self.sets:
            one.option, _ = decide(judge(one.progress), one.option, held_out=True)
        return [one.option for one in self.sets]
