"""What ways of scoring cost, and how well each ranks by the exact loss: a table. Plain values."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

HALF = 0.5  # share of the candidates whose choice is judged


@dataclass(frozen=True)
class WayCost:
    """One way of scoring.

    Attributes:
        name: of the exit, with what is left out.
        cost: time of scoring the candidates of a step over that of the user's step.
        rank_correlation: Spearman's, between scores and exact losses.
        recall: share of the exact top half that is in the half with the highest scores.
        kept_loss: share μ of the candidates' loss that this half carries; 0.5 at random.
        used: whether candidates are scored so now.
        keep: the share of the candidates that is judged, where it is not half.
    """

    name: str
    cost: float
    rank_correlation: float
    recall: float
    kept_loss: float
    used: bool = False
    keep: float = HALF

    @property
    def gain(self) -> float:
        """Progress a second over that of the plain loop, at best: ρ = μ / keep over 1 + cost.

        >>> WayCost("exit 1", cost=0.25, rank_correlation=0.8, recall=0.8, kept_loss=0.75).gain
        1.2
        """
        return self.kept_loss / self.keep / (1 + self.cost)

    @property
    def known(self) -> bool:
        """Whether both cost and quality were measured."""
        return not math.isnan(self.gain)


class Costs(Sequence[WayCost]):
    """Ways of scoring, the best net gain first; prints as a table.

    >>> print(Costs([WayCost("exit 1", 0.07, 0.61, 0.7, 0.58, used=True)]))
    way of scoring    cost  Spearman  recall     μ  net gain
    exit 1           0.070      0.61    0.70  0.58      1.08  in use
    """

    def __init__(self, ways: Sequence[WayCost], note: str = "") -> None:
        self.ways = tuple(
            sorted(ways, key=lambda way: (not way.known, -way.gain if way.known else 0.0))
        )
        self.note = note

    @overload
    def __getitem__(self, index: int) -> WayCost: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[WayCost, ...]: ...
    def __getitem__(self, index: int | slice) -> WayCost | tuple[WayCost, ...]:
        return self.ways[index]

    def __len__(self) -> int:
        return len(self.ways)

    def __iter__(self) -> Iterator[WayCost]:
        return iter(self.ways)

    def __str__(self) -> str:
        width = max([len("way of scoring"), *(len(way.name) for way in self.ways)]) + 2
        lines = [f"{'way of scoring':<{width}}  cost  Spearman  recall     μ  net gain"]
        for way in self.ways:
            shown = (
                f"{_shown(way.cost, 3):>6}  {_shown(way.rank_correlation, 2):>8}  "
                f"{_shown(way.recall, 2):>6}  {_shown(way.kept_loss, 2):>4}  {_shown(way.gain, 2):>8}"
            )
            lines.append(f"{way.name:<{width}}{shown}{'  in use' if way.used else ''}".rstrip())
        return "\n".join([*lines, *([self.note] if self.note else [])])

    __repr__ = __str__


def _shown(value: float, digits: int) -> str:
    return "–" if math.isnan(value) else f"{value:.{digits}f}"
