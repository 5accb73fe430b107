"""Budgets, and how many updates each arm can make of one. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from sifting.measure.audit import default_period
from sifting.measure.clocks import COUNTED, of_update, repetitions
from sifting.selection.schedule import Schedule
from sifting.training.amounts import AmountKind, parse_amount

STEPWISE = ("candidates_seen", "selections", "audits")  # what a step has, as `Work.steps` gives it
UNDERSTOOD = (
    "seconds (90s, 15m, 2h), updates (2000u), samples back-propagated (64000n), or the time of a "
    "number of updates of the baseline (baseline:2000u)"
)


@dataclass(frozen=True)
class RunBudget:
    """What every arm may spend.

    Attributes:
        kind: "seconds" of reference time, "updates", or "samples" back-propagated.
        amount: of that kind.
        of_baseline: whether it is the time that the baseline needs for this many updates.
        of_all: whether it is the time of all runs together.
    """

    kind: AmountKind
    amount: float
    of_baseline: bool = False
    of_all: bool = False


def parse_budget(text: str) -> RunBudget:
    """A budget from what a user writes.

    >>> parse_budget("15m").amount
    900.0
    >>> parse_budget("64000 samples").kind
    'samples'
    >>> parse_budget("baseline:2000u").of_baseline
    True

    Args:
        text: a number and a unit: seconds (90s, 15m, 2h), updates (2000u) or samples
            back-propagated (64000n); after "baseline:", the time of so many baseline updates;
            after "total:", the time of all runs together.
    """
    prefix, colon, amount = text.strip().rpartition(":")
    if prefix not in ("", "baseline", "total") or (colon and not prefix):
        raise ValueError(f"budget={text!r} is not understood: give {UNDERSTOOD}")
    total = prefix == "total"
    kind, number = parse_amount(
        amount,
        name="total" if total else "budget",
        understood="the time of all runs together, e.g. 90m or 2h" if total else UNDERSTOOD,
    )
    if prefix == "baseline" and kind != "updates":
        raise ValueError(f"budget={text!r}: after 'baseline:' give updates, e.g. baseline:2000u")
    if total and kind != "seconds":
        raise ValueError(f"total={amount!r}: give the time of all runs together, e.g. 2h")
    return RunBudget(kind, number, of_baseline=prefix == "baseline", of_all=total)


@dataclass(frozen=True)
class ArmWork:
    """How an arm goes through its candidates.

    Attributes:
        schedule: of its sifter, for the run as planned.
        candidates: in a batch; samples that a step trains, where they are drawn for each.
        accumulate: batches whose gradients make one update.
        audit_every: selections between audits; None for the default, 0 for none.
        by_samples: whether candidates are drawn for each step, rather than met as batches.
        warmup: share of the updates before the first selection, where that is how it is given.
        until: share of the updates after which nothing is selected.
        reads: whether candidates are read for an audit alone, which makes it rarer by default.
        listens: what the losses of are read: of every "step", of every "selection", or of nothing.
    """

    schedule: Schedule
    candidates: int
    accumulate: int = 1
    audit_every: int | None = 0
    warmup: float | None = None
    by_samples: bool = False
    until: float = 1.0
    reads: bool = False
    listens: Literal["step", "selection", ""] = ""

    def steps(self, updates: int) -> Iterator[tuple[int, int, int]]:
        """Candidates drawn, selections and audits before each batch that is trained, endlessly.

        Args:
            updates: planned, of which a share may be warm-up.
        """
        schedule, every = self.schedule, self.audit_every
        warm, stop = schedule.warmup_steps, schedule.stop_step
        if self.warmup is not None:
            warm = round(self.warmup * updates) * self.accumulate
        if self.until < 1:
            stop = max(1, warm, round(self.until * updates) * self.accumulate)
        schedule = Schedule(schedule.keep, warm, stop, schedule.every)
        step = selections = 0
        for drawn, steps, sifted in self._draws(schedule):
            selections += sifted
            audited = False
            if sifted:
                keep = schedule.keep_at(step)
                period = default_period(keep, reads=self.reads) if every is None else every
                audited = period > 0 and selections % period == 0
            yield drawn, int(sifted), int(audited)
            for _ in range(steps - 1):
                yield 0, 0, 0
            step += steps

    def _draws(self, schedule: Schedule) -> Iterator[tuple[int, int, bool]]:
        """Of one draw after another: candidates, the steps that they make, whether they are sifted."""
        size = self.candidates
        if self.by_samples:
            for step in itertools.count():
                yield schedule.candidates(step=step, size=size), 1, schedule.sifts(step=step)
        for steps, sifted in schedule.walk(itertools.repeat(size)):
            yield size, steps, sifted

    def counts(self, updates: int) -> dict[str, int]:
        """Candidates, selections, audits and losses read of a run, as `charged` takes them.

        >>> ArmWork(Schedule(0.5, warmup_steps=2), candidates=8, audit_every=2).counts(6)
        {'candidates_seen': 40, 'selections': 4, 'audits': 2, 'losses_read': 0}
        """
        steps = self.steps(updates)
        taken = [next(steps) for _ in range(updates * self.accumulate)]
        columns = zip(*taken, strict=True)
        found = {name: sum(column) for name, column in zip(STEPWISE, columns, strict=True)}
        return {**found, "losses_read": sum(self._listened(selected) for _, selected, _ in taken)}

    def _listened(self, selected: int) -> int:
        """How many losses are read in a step: of it, or of what was selected in it."""
        return int(self.listens == "step" or (self.listens == "selection" and selected > 0))

    def seconds(self, table: Mapping[str, float], updates: int) -> float:
        """Time of so many updates by a table of costs, evaluations left out."""
        done = repetitions(updates, self.counts(updates))
        each = of_update(table)
        return updates * each + sum(table.get(name, 0.0) * done[name] for name in COUNTED)

    def affordable(self, table: Mapping[str, float], seconds: float) -> int:
        """The most updates whose time by a table of costs is within a number of seconds.

        >>> work = ArmWork(Schedule(0.5), candidates=8)
        >>> work.affordable({"forward": 1.0, "backward": 2.0, "scoring": 1.0}, 10.0)
        2

        Args:
            table: seconds of each operation, as `clocks.charged` takes it.
            seconds: to spend, evaluations left out.
        """
        updates = -1
        for _ in range(50):  # more updates, more warm-up, which is cheap: a few rounds settle it
            before, updates = updates, self._walk(table, seconds, max(updates, 0))
            if updates == before:
                break
        while self.seconds(table, updates + 1) <= seconds:  # warm-up is rounded to whole updates
            updates += 1
        return updates

    def _walk(self, table: Mapping[str, float], seconds: float, planned: int) -> int:
        each = of_update(table)
        prices = {name: table.get(name, 0.0) for name in COUNTED}
        if each <= 0:
            raise ValueError("the table of costs has no time of an update: calibrate again")
        spent, updates, seconds = 0.0, 0, seconds * (1 + 1e-9)
        steps = self.steps(planned)
        while True:
            for _ in range(self.accumulate):
                drawn, selected, audited = next(steps)
                spent += drawn * prices["data"] + selected * prices["scoring"]
                spent += audited * prices["auditing"]
                spent += self._listened(selected) * prices["observing"]
            spent += each
            if spent > seconds:
                return updates
            updates += 1
