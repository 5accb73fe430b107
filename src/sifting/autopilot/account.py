"""What a run's steps stand for, in plain ones; and ending it sooner by what they gain.

A step that is worth 1.3 plain ones moves the learning rate on by 1.3 steps of its schedule. So the run
goes through all of its schedule, in fewer steps, and ends where the plain run would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from sifting.autopilot.trial import Trial
from sifting.plain import Plain

ROUNDING = 1e-6  # of sums of steps


class Account:
    """Counts what steps stand for.

    >>> account = Account(Trial(updates=3))
    >>> for _ in range(2):
    ...     account.hand_out(worth=1.5)
    ...     account.close()
    >>> account.handed, account.over
    (3.0, False)

    Without a schedule in the `Trial` it only counts, and no run ends sooner.

    Args:
        trial: the length of the run and the schedule of its learning rate, where they are known.

    Attributes:
        handed: plain steps that the batches handed out stand for.
        trained: those that are trained.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.handed = self.trained = 0.0
        self._batches = 0  # handed out
        self._open: deque[float] = deque()  # worth of those that are not trained yet
        self._moved = 0  # steps by which the schedule was moved on
        self._first: int | None = None  # of the schedule's, when the first batch was trained

    def hand_out(self, worth: float) -> None:
        """A batch is about to be trained, worth so many plain ones."""
        self.handed += worth
        self._batches += 1
        self._open.append(worth)

    def close(self) -> None:
        """A batch was trained; moves the schedule on where it is behind."""
        self.trained += self._open.popleft() if self._open else 1.0
        if self.trial.schedule is not None:
            self._move(self.trial.schedule)

    def _move(self, schedule: Any) -> None:
        accumulate = self.trial.accumulate
        made = (self._batches - len(self._open)) // accumulate
        assert self.trial.updates is not None
        reached = min(self.trained + ROUNDING, self.trial.updates)  # a schedule has no more steps
        gained = int(reached / accumulate) - made
        if self._first is None:
            self._first = schedule.last_epoch - self._moved
        own = schedule.last_epoch - self._first - self._moved
        if gained > self._moved and own < made // 2:
            raise ValueError(
                f"schedule= of the Trial was stepped {own} times in {made} updates: it has to be stepped once an "
                "update to be moved on by what selection gains. Do so, or leave it out"
            )
        while self._moved < gained:
            schedule.step()
            self._moved += 1

    @property
    def gained(self) -> float:
        """Plain steps that the batches handed out stand for beyond their number."""
        return self.handed - self._batches

    @property
    def over(self) -> bool:
        """Whether the run has made the progress that was planned, in whole updates."""
        trial = self.trial
        if trial.schedule is None or trial.updates is None:
            return False
        whole = self._batches % trial.accumulate == 0
        return whole and self.handed + ROUNDING >= trial.updates

    def state_dict(self) -> dict[str, Any]:
        return {
            "handed": self.handed,
            "trained": self.trained,
            "batches": self._batches,
            "open": list(self._open),
            "moved": self._moved,
            "first": self._first,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        found = Plain(state, "the autopilot's account")
        handed, trained = found.number("handed"), found.number("trained")
        batches, left = found.whole("batches"), [float(worth) for worth in found.items("open")]
        moved, first = found.whole("moved"), found.get("first")
        if first is not None:
            first = found.whole("first", least=-1)
        self.handed, self.trained, self._batches = handed, trained, batches
        self._moved, self._first = moved, first
        self._open = deque(left)
