"""Counting, timing and judging, step by step."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sifting.data.position import divide
from sifting.measure.quality import Quality
from sifting.measure.stats import WINDOW, Stats, share_of
from sifting.measure.stopwatch import now
from sifting.plain import Plain, damaged

FEWEST = 3  # audits before anything is concluded from them
SPAN = 100  # training steps whose random picks give one reading of ρ


class Meter:
    """Counts, times and judges; all of it survives a `state_dict` round trip."""

    COUNTS = (
        "steps",
        "selections",
        "candidates_seen",
        "samples_trained",
        "tokens_seen",
        "tokens_trained",
        "audits",
        "rehearsals",
        "held_out_seen",
        "trial_updates",
        "losses_read",
    )
    CLOCKS = ("scoring", "auditing", "observing", "between", "loading")
    # of an audit
    METRICS = ("recall", "rank_correlation", "rho_approx", "misclassified", "rho_tokens")

    def __init__(self) -> None:
        self.counts = dict.fromkeys(self.COUNTS, 0)
        self.seconds = dict.fromkeys(self.CLOCKS, 0.0)
        self.recent: deque[list[float]] = deque(maxlen=WINDOW)  # of audits: METRICS
        self.explored: Tensor | None = None  # running sums: mean loss of the kept, the candidates
        self.observed = 0
        self.windows: deque[float] = deque(maxlen=WINDOW)  # ρ over spans of training steps
        self.warned: set[str] = set()
        self._events: list[tuple[str, Any, Any]] = []

    @contextmanager
    def time(self, clock: str, device: torch.device) -> Iterator[None]:
        """Charge what runs inside to a clock, on the device's own time where it has one."""
        if device.type == "cuda":
            start, end = (torch.Event(device, enable_timing=True) for _ in range(2))
            start.record()
            try:
                yield
            finally:
                end.record()
                self._events.append((clock, start, end))
                self._collect(wait=False)
            return
        begin = now()
        try:
            yield
        finally:
            self.seconds[clock] += now() - begin

    def spent(self, clock: str) -> float:
        """Seconds of a clock, as far as they are known without waiting for the device."""
        self._collect(wait=False)
        return self.seconds[clock]

    def _collect(self, *, wait: bool) -> None:
        """Read finished CUDA events; reading one that has not finished would stall the queue."""
        while self._events and (wait or self._events[0][2].query()):
            clock, start, end = self._events.pop(0)
            end.synchronize()
            self.seconds[clock] += start.elapsed_time(end) / 1e3

    def audit(self, found: Quality, wrong: float | None, rho_tokens: float | None = None) -> None:
        """Add the quality of one choice."""
        self.counts["audits"] += 1
        values = [found.recall, found.rank_correlation, found.rho_approx]
        more = [math.nan if value is None else value for value in (wrong, rho_tokens)]
        self.recent.append([*values, *more])

    def observe(self, means_2: Tensor) -> None:
        """Add mean exact losses met in training: of the kept, and estimated of the candidates.

        They stay on their device; once in a span they are read back, as one ρ.
        """
        means_2 = torch.where(means_2.isfinite().all(), means_2, 0.0)
        self.explored = (
            means_2 if self.explored is None else 0.98 * self.explored.to(means_2.device) + means_2
        )
        self.observed += 1
        if self.observed % SPAN == 0:
            rho = self._rho_explored()
            if rho is not None:
                self.windows.append(rho)

    @property
    def explored_means(self) -> tuple[float, float] | None:
        """Running sums of the mean exact loss of the kept, and of the candidates."""
        if self.explored is None:
            return None
        kept, candidates = self.explored.tolist()
        return kept, candidates

    def _rho_explored(self) -> float | None:
        if self.explored_means is None:
            return None
        kept, candidates = self.explored_means
        return kept / candidates if candidates > 0 else None

    def stats(self) -> Stats:
        """The summary so far."""
        self._collect(wait=True)
        recall, correlation, rho, wrong, by_token = map(self._mean, range(len(self.METRICS)))
        counts, seconds = self.counts, self.seconds
        return Stats(
            steps=counts["steps"],
            selections=counts["selections"],
            candidates_seen=counts["candidates_seen"],
            samples_trained=counts["samples_trained"],
            seconds_scoring=seconds["scoring"],
            seconds_auditing=seconds["auditing"],
            seconds_observing=seconds["observing"],
            seconds_between=seconds["between"],
            seconds_loading=seconds["loading"],
            audits=counts["audits"],
            rehearsals=counts["rehearsals"],
            held_out_seen=counts["held_out_seen"],
            trial_updates=counts["trial_updates"],
            losses_read=counts["losses_read"],
            recall=recall,
            rank_correlation=correlation,
            rho_approx=rho,
            rho_explored=self._rho_explored(),
            misclassified=wrong,
            scoring_share=share_of(seconds["scoring"], seconds["between"]),
            tokens_seen=counts["tokens_seen"],
            tokens_trained=counts["tokens_trained"],
            rho_tokens=by_token,
        )

    def condemned(self) -> float | None:
        """ρ_approx, where audits or random picks put it below 1 beyond their own noise."""
        for values in ([row[2] for row in self.recent], list(self.windows)):
            if len(values) < FEWEST:
                continue
            mean = sum(values) / len(values)
            spread = math.sqrt(sum((v - mean) ** 2 for v in values) / (len(values) - 1))
            if mean + 3 * spread / math.sqrt(len(values)) < 1:
                return mean
        return None

    def mostly_wrong(self) -> bool:
        """Whether most of the kept samples were misclassified over the last audits."""
        wrong = self._mean(3)
        return len(self._column(3)) >= FEWEST and wrong is not None and wrong > 0.5

    def _column(self, index: int) -> list[float]:
        """One metric of the last audits, where they have it."""
        return [row[index] for row in self.recent if not math.isnan(row[index])]

    def _mean(self, index: int) -> float | None:
        values = self._column(index)
        return sum(values) / len(values) if values else None

    def state_dict(self) -> dict[str, Any]:
        self._collect(wait=True)
        return {
            "counts": dict(self.counts),
            "seconds": dict(self.seconds),
            "recent": [list(row) for row in self.recent],
            "explored": None if self.explored is None else self.explored.tolist(),
            "observed": self.observed,
            "windows": list(self.windows),
            "warned": dict.fromkeys(sorted(self.warned), 1),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; one that is damaged changes nothing."""
        fresh = self.checked(state)
        self.__dict__.update(fresh.__dict__)

    @classmethod
    def checked(cls, state: Any) -> Meter:
        """The meter that a state was taken of.

        Raises:
            ValueError: where no meter can have it: a value is missing, or a count impossible.
        """
        found = Plain(state, "the meter")
        counts, seconds = found.inside("counts"), found.inside("seconds")
        fresh = cls()
        # not all are as old as a state may be
        fresh.counts = {name: counts.whole(name) if name in counts else 0 for name in cls.COUNTS}
        fresh.seconds = {
            name: seconds.number(name) if name in seconds else 0.0 for name in cls.CLOCKS
        }
        rows = found.items("recent")
        columns = len(fresh.METRICS)
        fresh.recent.extend(found.numbers("recent", row, length=columns, nan=True) for row in rows)
        if found.get("explored") is not None:
            means = found.numbers("explored", length=2)
            fresh.explored = torch.tensor(means, dtype=torch.float64)
        fresh.observed = found.whole("observed")
        fresh.windows.extend(found.numbers("windows"))
        fresh.warned = set(found.inside("warned"))
        for fewer, more in (("selections", "steps"), ("audits", "selections")):
            if fresh.counts[fewer] > fresh.counts[more]:
                raise damaged(
                    f"it counts {fresh.counts[fewer]} {fewer}, and {fresh.counts[more]} {more}"
                )
        for name, kept in (("recent", rows), ("windows", found.items("windows"))):
            if len(kept) > WINDOW:
                found.refuse(name, f"a list of at most {WINDOW}")
        return fresh

    @staticmethod
    def divided(states: Sequence[Mapping[str, Any]], rank: int, world: int) -> dict[str, Any]:
        """The state that one of `world` ranks continues with, from those of the ranks that saved.

        Samples seen and trained are divided so that their sums stay; times are means.
        """
        state = copy.deepcopy(dict(states[rank % len(states)]))
        for name in ("candidates_seen", "samples_trained", "tokens_seen", "tokens_trained"):
            total = sum(int(theirs["counts"][name]) for theirs in states)
            state["counts"][name] = divide(total, rank, world)
        for clock in state["seconds"]:
            values = [float(theirs["seconds"].get(clock, 0.0)) for theirs in states]
            state["seconds"][clock] = sum(values) / len(values)
        return state
