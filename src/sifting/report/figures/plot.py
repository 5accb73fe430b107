"""A figure as data: what is drawn, on which axes. `report.svg` draws it on a page, `report.paper` in a file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from sifting.verdict.curves import Floats

MARGIN = 0.05  # of what is shown, around it
ROUND = (1.0, 2.0, 2.5, 5.0, 10.0)  # steps of an axis, times a power of ten
LETTER = 0.095  # inches that a letter of an axis takes
ROOM = {"x": 0.62, "y": 0.42}  # inches that a tick has at least
PLAIN_NUMBERS = (1e-4, 1e6)  # smaller and larger ones are written with an exponent

Tick = tuple[float, str]


@dataclass(frozen=True)
class Line:
    """Points that are joined, marked, or both, and the spread around them.

    Attributes:
        style: number of an arm, which has a colour, a dash and a mark.
        x, y: the points, x increasing where they are joined.
        spread: how far the band around them reaches to each side; None for no band.
        every: one in so many points is marked; 0 for none.
        joined: whether a line goes through them: "no", straight, or in steps.
        size: of a mark, in points of print.
        tone: its colour: the arm's, or that of text or of rules.
        mark: another mark than the arm's.
    """

    style: int
    x: Sequence[float] | Floats
    y: Sequence[float] | Floats
    spread: Floats | None = None
    every: int = 1
    joined: Literal["no", "straight", "steps"] = "straight"
    size: float = 5.0
    tone: Literal["arm", "ink", "muted"] = "arm"
    mark: str | None = None

    @property
    def dashed(self) -> bool:
        """Whether it has the arm's dash; stairs are solid, and so is what is no arm's."""
        return self.tone == "arm" and self.joined == "straight"


@dataclass(frozen=True)
class Bar:
    """A part of a horizontal bar: seconds of one clock."""

    row: int
    left: float
    length: float
    clock: int


@dataclass(frozen=True)
class Note:
    """Text at a place: over a point, from there to the right; or beside it."""

    x: float
    y: float
    text: str
    where: Literal["over", "beside"] = "over"


@dataclass(frozen=True)
class Axis:
    """One side of a figure.

    Attributes:
        label: what it shows.
        low, high: its ends; low may be the larger one.
        ticks: values with what is written at them.
        grid: whether a line goes through the figure at each tick.
        log: whether the distance between values is that of their logarithms.
        line: whether the side is drawn.
    """

    label: str
    low: float
    high: float
    ticks: tuple[Tick, ...] = ()
    grid: bool = False
    log: bool = False
    line: bool = True

    def share(self, value: float) -> float:
        """How far along the axis a value is: 0 at its low end, 1 at its high one.

        >>> Axis("", 0.0, 10.0).share(2.5), Axis("", 1.0, 4.0, log=True).share(2.0)
        (0.25, 0.5)
        """
        low, high = self.low, self.high
        if self.log:
            value, low, high = (math.log2(max(v, 1e-300)) for v in (value, low, high))
        length = high / 2 - low / 2  # halves, since the difference of two numbers may be none
        found = (value / 2 - low / 2) / length if length else 0.5
        return min(max(found, -FAR), FAR) if math.isfinite(found) else 0.0


FAR = 100.0  # lengths of an axis beyond its ends at which a point may be put, out of sight


@dataclass(frozen=True)
class Plot:
    """All of a figure but its legend.

    Attributes:
        x, y: the axes.
        lines, bars, notes: what is drawn, the first at the back.
        rules: heights of dashed lines to compare with.
        height: in inches, where it is not that of its canvas.
        left: inches left of the axes.
    """

    x: Axis
    y: Axis
    lines: tuple[Line, ...] = ()
    rules: tuple[float, ...] = ()
    bars: tuple[Bar, ...] = ()
    notes: tuple[Note, ...] = ()
    height: float | None = None
    left: float = 0.78


def reach(values: Iterable[float], *, margin: float = MARGIN) -> tuple[float, float]:
    """Lowest and highest of some values, with a margin around them.

    >>> reach([0.0, 10.0])
    (-0.5, 10.5)
    >>> reach([])
    (0.0, 1.0)
    """
    found = [float(v) for v in values if math.isfinite(v)]
    if not found:
        return 0.0, 1.0
    low, high = min(found), max(found)
    if not math.isfinite(high - low):
        return low, high
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # one value, or as good as one
        return low - (MARGIN * abs(low) or 1.0), high + (MARGIN * abs(high) or 1.0)
    return low - margin * (high - low), high + margin * (high - low)


def axis(
    label: str,
    ends: tuple[float, float],
    inches: float,
    *,
    side: Literal["x", "y"] = "x",
    grid: bool = False,
    write: Callable[[float], str] | None = None,
    line: bool = True,
) -> Axis:
    """An axis with as many round ticks as it has room for.

    Args:
        label: what it shows.
        ends: lowest and highest value.
        inches: its length.
        side: along which labels stand.
        grid: see `Axis`.
        write: a tick's label from its value; by default all with as many digits as they need.
        line: see `Axis`.
    """
    low, high = ends
    if not high > low:
        low, high = reach([low])
    most = max(2, int(inches / ROOM[side]))
    for fewer in range(most, 1, -1):
        values, step = ticks(low, high, fewer)
        texts = [write(value) if write else written(value, step) for value in values]
        if side == "y" or LETTER * sum(len(text) + 1 for text in texts) <= inches:
            break
    return Axis(label, low, high, tuple(zip(values, texts, strict=True)), grid=grid, line=line)


def ticks(low: float, high: float, most: int) -> tuple[list[float], float]:
    """Round values from one end to the other, at most one more than asked for, and their distance.

    >>> ticks(0.0, 43.0, 7)
    ([0.0, 10.0, 20.0, 30.0, 40.0], 10.0)
    """
    raw = high / most - low / most
    if not math.isfinite(raw) or raw <= 0:
        return [low], 1.0
    power = math.floor(math.log10(raw))
    unit = 10.0**power
    step = next((m * unit for m in ROUND if m * unit >= raw * (1 - 1e-9)), 10 * unit)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * k for k in range(first, min(last, first + most + 1) + 1)], step


def written(value: float, step: float) -> str:
    """A tick's value with as many digits as tell it from the next.

    >>> written(0.25, 0.05), written(20.0, 10.0), written(-2.5, 2.5), written(3e9, 1e9)
    ('0.25', '20', '−2.5', '3e+09')
    """
    small, large = PLAIN_NUMBERS
    if abs(value) >= large or step < small:
        text = f"{value:.3g}"
    else:
        digits = max(0, -math.floor(math.log10(step) + 1e-9))
        exact = round(step * 10**digits, 6)
        text = f"{value:.{digits + (exact != round(exact))}f}"
    return text.replace("-", "−", 1) if text.startswith("-") else text
