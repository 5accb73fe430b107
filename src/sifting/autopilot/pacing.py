"""How often scorers are rehearsed, and what they cost: by this machine's own clocks, settled once.

Decisions that went by the clock at every step would differ from run to run. So times are taken over the
first rehearsals only; what follows from them is rounded, kept, and part of the state. Whose runs have to
decide alike whatever the machine is busy with gives the cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sifting.plain import Plain

FIRST, OFTEN = 16, 2  # rehearsals that are timed, and the steps between two of them
FEWEST, SHARE = 4, 0.01  # of a short run: as many as so many of its steps, but not fewer
EARLY, LATER = 0.04, 0.002  # share of a step that rehearsals may take: at first, and later on
LONG = 0.12  # share of the run that counts as its beginning
UNPLANNED = 256  # steps that do, where its length is not known
UNKNOWN = 0.05  # cost, in steps, where the clocks do not tell
HOPELESS = 0.35  # cost of choosing, in steps, from which on it cannot pay


@dataclass
class Pacing:
    """When to rehearse.

    >>> pacing = Pacing(steps=1000)
    >>> for _ in range(FIRST):
    ...     _ = pacing.timed(0.001, step_seconds=0.01)
    >>> pacing.settled, pacing.due(2), pacing.due(501), pacing.due(512)
    (True, False, False, True)

    Attributes:
        steps: planned; None where that is not known.
        seconds, count: of the rehearsals that were timed.
        cost: of scoring a step's own samples, in steps; None until it is settled.
    """

    steps: int | None = None
    seconds: float = 0.0
    count: int = 0
    cost: float | None = None

    @property
    def first(self) -> int:
        """Rehearsals that are timed.

        >>> Pacing(steps=600).first, Pacing(steps=5000).first, Pacing().first
        (6, 16, 16)
        """
        return FIRST if self.steps is None else min(FIRST, max(FEWEST, round(SHARE * self.steps)))

    @property
    def settled(self) -> bool:
        """Whether the cost is known."""
        return self.cost is not None

    @property
    def hopeless(self) -> bool:
        """Whether a step is so short beside choosing that choosing cannot pay."""
        return self.cost is not None and self.cost >= HOPELESS

    def due(self, step: int) -> bool:
        """Whether to rehearse at a step, counted from 0."""
        if self.cost is None:
            return step % OFTEN == 0
        if self.hopeless:
            return False
        first = UNPLANNED if self.steps is None else LONG * self.steps
        return step % _period(self.cost, EARLY if step < first else LATER) == 0

    def timed(self, seconds: float, *, step_seconds: float) -> bool:
        """Take in how long a rehearsal took, beside a mean training step; whether it was the last.

        Args:
            seconds: of the rehearsal.
            step_seconds: of a training step so far; 0 where that is not known yet.
        """
        if self.cost is not None:
            return False
        self.seconds += seconds if self.count else 0.0  # the first one sets things up
        self.count += 1
        if self.count < self.first:
            return False
        found = self.seconds / (self.count - 1) / step_seconds if step_seconds > 0 else UNKNOWN
        # in steps of a fifth: times differ by less from run to run
        self.cost = round(1.2 ** round(math.log(max(found, 1e-4), 1.2)), 6)
        return True

    def given(self, cost: float | None) -> None:
        """Go by this cost, and by no clock; None changes nothing."""
        self.cost = self.cost if cost is None else float(cost)

    def to_plain(self) -> dict[str, Any]:
        return {"seconds": self.seconds, "count": self.count, "cost": self.cost}

    def load(self, plain: Mapping[str, Any]) -> None:
        """Continue from what `to_plain` gave."""
        found = Plain(plain, "the autopilot's pacing")
        seconds, count = found.number("seconds"), found.whole("count")
        self.cost = None if found.get("cost") is None else found.number("cost")
        self.seconds, self.count = seconds, count


def _period(cost: float, share: float) -> int:
    """Steps between rehearsals, a power of two, so that they take a share of a step at most.

    >>> _period(0.13, 0.06), _period(0.0001, 0.06)
    (4, 2)
    """
    return max(OFTEN, int(2 ** math.ceil(math.log2(max(cost / share, 1.0)))))
