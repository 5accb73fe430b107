"""The figures of a report, one file for each kind, as data: how they are drawn is no matter of theirs.

A further figure is a further file with a function `drawings(experiment)`, named in `KINDS`.
"""

from __future__ import annotations

from collections.abc import Iterator

from sifting.report.figures import autopilot, clocks, learning, quality
from sifting.report.figures.canvas import Drawing
from sifting.report.reading import Experiment

__all__ = ["Drawing", "drawings"]

KINDS = (learning, clocks, quality, autopilot)  # in the order in which a page shows them


def drawings(experiment: Experiment) -> Iterator[Drawing]:
    """All figures of an experiment for which its runs have data.

    Args:
        experiment: of `collect`.
    """
    for kind in KINDS:
        yield from kind.drawings(experiment)
