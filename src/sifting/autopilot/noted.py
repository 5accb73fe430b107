"""Progress between looks, by what each option would keep.

Shapes: M held-out samples.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from sifting.autopilot.options import LADDER, Option
from sifting.measure.learning import Progress, progress

DRIFT = 0.12  # standard deviation by which a share changes from the earlier looks to the last two
LATE = 2  # looks that are always added up: between two, a model swings to one class or another
LOOKS = 4  # the last ones, which are kept


class Noted(dict[Option, list[Progress]]):
    """Of the last looks at some samples, by option.

    >>> from torch import tensor
    >>> noted, before, after = Noted(), tensor([2.0, 2.0, 1.0, 1.0]), tensor([1.0, 1.5, 1.0, 0.5])
    >>> noted.add("input", before, after, tensor([4.0, 3.0, 2.0, 1.0]))
    >>> round(noted.recent(Option("input", 2)).share, 2)
    0.75
    """

    def add(self, scorer: str, before_M: Tensor, now_M: Tensor, scores_M: Tensor) -> None:
        """Take in what happened between two looks.

        Args:
            scorer: whose choice is asked about.
            before_M, now_M: losses at the two looks.
            scores_M: by which the samples would be chosen.
        """
        for ratio in LADDER:
            option = Option(scorer, ratio)
            found = progress(before_M, now_M, scores_M, ratio)
            self[option] = [*self.get(option, [])[1 - LOOKS :], found]

    def recent(self, option: Option) -> Progress | None:
        """Progress of late, by what an option would keep."""
        return pooled(self.get(option, []))


def pooled(looks: Sequence[Progress], *, drift: float = DRIFT) -> Progress | None:
    """Progress over the last two looks, and over the ones before for as much as they still tell.

    >>> early, late = Progress(0.2, 0.2, 1e-5, 1e-5), Progress(0.03, 0.01, 1e-5, 1e-5)
    >>> [round(found.share, 2) for found in (pooled([early, late]), pooled([early, late, late]))]
    [0.52, 0.72]

    The two shares are weighed by one over their variances, the earlier one's larger by that of the
    drift: most of the progress is made early, and says little of what is left to be learned.

    Args:
        looks: from the earliest to the last.
        drift: by how much the share may have changed since the earlier ones.
    """
    late = sum(looks[-LATE:], start=NOTHING) if looks else None
    early = sum(looks[:-LATE], start=NOTHING)
    if late is None or late.lost or not early.told:
        return late
    if not late.told:  # too little was learned since to have a share of its own
        return early.blurred(drift)
    return late + early.beside(late, drift=drift)


NOTHING = Progress(0.0, 0.0, 0.0, 0.0)
