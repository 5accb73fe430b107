"""Trials of options: pieces trained both ways, compared on held-out samples; a veto where one harms.

Shapes: K draws, M held-out samples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sifting.autopilot.held_out import HeldOut
from sifting.autopilot.options import PLAIN, Option
from sifting.autopilot.pieces import Pieces
from sifting.autopilot.saving import Saving, saving
from sifting.log import say
from sifting.parallel.ranks import Ranks

SHORTEST, LONGEST = 20, 80  # updates of a piece
DRAWS, MOST_DRAWS = 2, 4  # at least, and where the difference is not settled
HARM = 2.0  # standard errors by which an option must be behind
LASTS = 1.5  # what was found holds until the run is so many times as long


@dataclass(frozen=True)
class TrialOutcome:
    """What a trial found.

    Attributes:
        updates: of the plain piece; that of the option takes as long.
        draws: pieces of each kind.
        loss: mean held-out loss after the plain piece.
        difference: by how much the option's is above it.
        error: standard error of the difference.
        saving: what the difference is worth in time, where plain pieces were trained for longer.
    """

    updates: int
    draws: int
    loss: float
    difference: float
    error: float
    saving: Saving | None = None

    @property
    def harms(self) -> bool:
        """Whether the option is behind beyond noise, or diverged where the plain piece did not.

        >>> TrialOutcome(40, 2, 0.5, 0.05, 0.01).harms, TrialOutcome(40, 2, 0.5, 0.01, 0.01).harms
        (True, False)
        """
        if not math.isfinite(self.loss):
            return False
        return not math.isfinite(self.difference) or self.difference > HARM * self.error

    @property
    def settled(self) -> bool:
        """Whether more draws would not change anything: it harms, or it is not behind at all."""
        return self.harms or self.difference <= 0


def outcome(plain_KM: Tensor, option_KM: Tensor, *, updates: int) -> TrialOutcome:
    """Compare held-out losses after pieces, sample by sample.

    >>> plain = torch.tensor([[1.0, 2.0], [1.2, 2.2]])
    >>> round(outcome(plain, plain + 0.1, updates=40).difference, 3)
    0.1

    The error is that of the samples and that of the draws together.
    """
    differences_KM = (option_KM - plain_KM).double()
    draws, samples = differences_KM.shape
    error = 0.0
    if samples > 1:
        error += float(differences_KM.mean(dim=0).var()) / samples
    if draws > 1:
        error += float(differences_KM.mean(dim=1).var()) / draws
    return TrialOutcome(
        updates,
        draws,
        float(plain_KM.double().mean()),
        float(differences_KM.mean()),
        math.sqrt(error),
    )


def piece_length(left: float, *, look: float, draws: int = DRAWS, longer: float = 0.0) -> int:
    """Updates of a piece that what is left of the budget affords; 0 where it is too little.

    >>> piece_length(400, look=5), piece_length(100, look=2), piece_length(80, look=2)
    (45, 23, 0)

    Half of what is left is kept for a later trial, where half suffices for this one.

    Args:
        left: updates' worth of time.
        look: updates' worth of a look at the held-out samples, which follows each piece.
        draws: pieces of each kind.
        longer: pieces' worth of time of the plain ones that are trained for longer, in each draw.
    """
    for spend in (left / 2, left):
        length = int((spend / draws - 2 * look) / (2 + longer))
        if length >= SHORTEST:
            return min(length, LONGEST)
    return 0


class Trials:
    """Tries options before they are taken up, and remembers which did harm.

    Args:
        pieces: trains them.
        held_out: looks at held-out samples, and shares the budget.
    """

    def __init__(self, pieces: Pieces, held_out: HeldOut) -> None:
        self.pieces, self.held_out, self.meter = pieces, held_out, pieces.meter
        self.lengths: tuple[float, ...] = ()  # of plain pieces that are trained for longer
        self.records: list[dict[str, Any]] = []  # for the log, until it takes them
        self._found: dict[Option, tuple[int, bool]] = {}  # steps, and whether there was harm
        self._said = False

    def vetoed(self, option: Option, step: int) -> bool:
        """Whether harm was found of it, or of the same scorer at a lower ratio, not long ago."""
        return any(
            harm and step < LASTS * tried and known.scorer == option.scorer
            for known, (tried, harm) in self._found.items()
            if known.ratio <= option.ratio
        )

    def harms(
        self, option: Option, cost: float, *, step: int, size: int, ranks: Ranks | None = None
    ) -> bool:
        """Try an option, where it was not tried before and time allows; whether it does harm.

        Args:
            option: to try.
            cost: what its scoring adds to a step, as a share of a plain one.
            step: of the run.
            size: samples of a batch.
            ranks: that train the same model on other data, and try alike.
        """
        tried, harm = self._found.get(option, (0, False))
        if step < LASTS * tried:
            return harm
        updates = self._length(step, size) if self._able(size) else 0
        if ranks is not None:  # pieces of one length, or on no rank
            plans = ranks.gather((updates, cost))
            updates, cost = min(theirs for theirs, _ in plans), plans[0][1]
        if updates == 0:
            return False
        found = self._try(option, cost, updates, step, size, ranks)
        if found is None:
            return False
        self._found[option] = step, found.harms
        about = {"batch": step, "scorer": option.scorer, "ratio": option.ratio}
        self.records.append({"kind": "trial", **about, **asdict(found), "harms": found.harms})
        return found.harms

    def _able(self, size: int) -> bool:
        if not self.held_out.looks:
            return False
        why = self.pieces.unable(size)
        if why is not None and not self._said and self.pieces.trial.loss is not None:
            say(f"no trial is made before a selection starts, since {why}")
            self._said = True
        return why is None

    def _left(self, step: int, size: int) -> tuple[float, float]:
        """Updates' worth of time that trials may take, and of a look."""
        trial = self.pieces.trial
        looks, look = self.held_out.spent(step, size)
        tried = self.meter.counts["trial_updates"] * trial.accumulate
        left = self.held_out.budget * (trial.updates or step) - looks - tried
        return left / trial.accumulate, look / trial.accumulate

    def _length(self, step: int, size: int) -> int:
        left, look = self._left(step, size)
        more = sum(self.lengths)
        return piece_length(left - DRAWS * len(self.lengths) * look, look=look, longer=more)

    def _try(
        self,
        option: Option,
        cost: float,
        updates: int,
        step: int,
        size: int,
        ranks: Ranks | None,
    ) -> TrialOutcome | None:
        """Pieces of both kinds, draw by draw, until the difference is settled or time is spent."""
        pair = ((PLAIN, updates), (option, max(1, round(updates / (1 + cost)))))
        found: dict[Option, list[Tensor]] = {which: [] for which, _ in pair}
        longer: dict[float, list[Tensor]] = {length: [] for length in self.lengths}
        result: TrialOutcome | None = None
        with self.pieces.open() as aside:
            for draw in range(MOST_DRAWS):
                if draw >= DRAWS:
                    left, look = self._left(step, size)
                    if result is None or result.settled or left < 2 * (updates + look):
                        break
                plans = [(which, length, updates, found[which]) for which, length in pair]
                for times, losses in longer.items():
                    length = round(times * updates)
                    plans.append((PLAIN, length, length, losses))
                for which, length, cost_in_updates, losses in plans:
                    number = MOST_DRAWS * step + draw
                    self.pieces.train(aside, which, updates=length, size=size, draw=number)
                    self.meter.counts["trial_updates"] += cost_in_updates
                    losses_M = self.held_out.losses()
                    if losses_M is None:
                        return None
                    losses.append(losses_M)
                plain, other = (torch.stack(found[which]) for which, _ in pair)
                result = outcome(plain, other, updates=updates)
                if longer:
                    by_length = {times: torch.stack(losses) for times, losses in longer.items()}
                    result = replace(result, saving=saving(plain, other, by_length))
                if ranks is not None:
                    result = ranks.gather(result)[0]
        return result

    def take_records(self) -> list[dict[str, Any]]:
        """What was found since this was last asked."""
        found, self.records = self.records, []
        return found

    def state_dict(self) -> dict[str, Any]:
        return {
            "records": list(self.records),
            "found": [[o.scorer, o.ratio, step, harm] for o, (step, harm) in self._found.items()],
            "seen": self.pieces.seen,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from what `state_dict` gave."""
        self.pieces.seen = list(state["seen"])
        self.records = [dict(record) for record in state["records"]]
        self._found = {
            Option(str(scorer), int(ratio)): (int(step), bool(harm))
            for scorer, ratio, step, harm in state["found"]
        }
