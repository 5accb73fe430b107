"""What a run's steps stand for, in plain ones; and ending it sooner by what they gain.

A step that is worth 1.3 plain ones moves the learning rate on by 1.3 steps of its schedule. So the run
goes through all of its schedule, in fewer steps, and ends where the plain run would.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from sifting.autopilot.schedules import check_length, steps_of
from sifting.autopilot.trial import Trial
from sifting.log import say
from sifting.plain import Plain

ROUNDING = 1e-6  # of sums of steps
LONGER = (
    1.05  # times the batches that were said to be trained, from which on a run is longer than that
)
TRUSTED = 20  # updates after which a schedule that is not stepped with them is refused


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
        self._first: int | None = None  # of the schedule's, before the first batch was trained
        self._late: bool | None = None  # whether it is stepped only when a batch counts as trained
        self._through = False  # whether it was moved on to where the plain run ends
        self._asked = 0  # how often a batch was asked for in vain

    def hand_out(self, worth: float) -> None:
        """A batch is about to be trained, worth so many plain ones."""
        if self._first is None and self.trial.schedule is not None:
            self._first = steps_of(self.trial.schedule) - self._moved
            check_length(self.trial, self._first)
        self.handed += worth
        self._batches += 1
        self._open.append(worth)
        updates = self.trial.updates
        looks = self.trial.held_out is not None and self.trial.schedule is None
        if updates is not None and looks and self._batches == round(LONGER * updates) + 1:
            say(
                f"the run goes on beyond the {updates} batches that updates= of the Trial says: no look at "
                "held-out samples is planned for the rest of it"
            )

    def close(self, passes: int = 1) -> None:
        """A batch was trained; moves the schedule on where it is behind.

        Args:
            passes: over the data that were begun: each may end with an update of fewer batches.
        """
        self.trained += self._open.popleft() if self._open else 1.0
        if self.trial.schedule is not None:
            self._move(self.trial.schedule, passes)

    def _move(self, schedule: Any, passes: int) -> None:
        accumulate = self.trial.accumulate
        made, rest = divmod(self._batches - len(self._open), accumulate)
        if rest:  # in the middle of an update, whose batches do not count as one yet
            return
        assert self.trial.updates is not None
        planned = self.trial.updates // accumulate
        reached = min(self.trained + ROUNDING, self.trial.updates)  # a schedule has no more steps
        gained = int(reached / accumulate) - made
        if self._first is None:  # of a state from before the schedule was there
            self._first = steps_of(schedule) - self._moved
        own = steps_of(schedule) - self._first - self._moved
        wrong = own < made // 2 or own > made + passes + 1
        if wrong and (gained > self._moved or made >= TRUSTED):
            raise ValueError(
                f"schedule= of the Trial was stepped {max(0, own)} times in {made} updates: it has to be stepped "
                "once an update to be moved on by what selection gains. Do so, or leave it out"
            )
        if self._late is None:
            self._late = own < made
        # where passes end with updates of fewer batches, this may be the middle of one
        pending = own != made or self._late
        while self._moved < gained and own + pending + self._moved < planned:
            schedule.step()
            self._moved += 1
        self._through = self._moved > 0 and own + pending + self._moved >= planned

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
        if self._through:  # sooner than by its batches, where passes end with smaller updates
            return True
        whole = self._batches % trial.accumulate == 0
        return whole and self.handed + ROUNDING >= trial.updates

    def ends(self) -> bool:
        """Whether no more batches are handed out; whoever asks for more after the end is told why."""
        if not self.over:
            return False
        self._asked += 1
        if self._asked == 2:  # another pass over the data has been begun
            say(
                f"no more batches are handed out: {self._batches} were, which stand for the "
                f"{self.trial.updates} that updates= of the Trial says"
            )
        return True

    def state_dict(self) -> dict[str, Any]:
        return {
            "handed": self.handed,
            "trained": self.trained,
            "batches": self._batches,
            "open": list(self._open),
            "moved": self._moved,
            "first": self._first,
            "late": self._late,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        found = Plain(state, "the autopilot's account")
        handed, trained = found.number("handed"), found.number("trained")
        batches, left = found.whole("batches"), [float(worth) for worth in found.items("open")]
        moved, first = found.whole("moved"), found.get("first")
        if first is not None:
            first = found.whole("first", least=-1)
        late = found.get("late") if "late" in found else None
        if late not in (True, False, None):
            found.refuse("late", "true or false")
        self.handed, self.trained, self._batches = handed, trained, batches
        self._moved, self._first, self._late = moved, first, late
        self._open = deque(left)
