"""Generated cases: each is handled right, by a reference of its own, or refused; none is wrong.

A module here registers what it generates and how it is checked. `make test` runs a few hundred cases
of each through pytest; `python -m tests.fuzz --examples 100000` runs as many as wanted.
"""

from __future__ import annotations

import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

REMEDIES = ("take=", "batch_size=", "collate", "forward=", "labels=", "losses=", "loss_fn=")
ROUND = 2000  # cases: Hypothesis remembers all of a round, and a failure ends it
MOST_FAILURES = 20  # rounds that fail before a kind is given up


@dataclass
class Sweep:
    """What rounds of cases came to.

    Attributes:
        rounds: how many there were.
        outcomes: how many were "right", "refused", "wrong" or "crashed".
        failures: the traceback of each round that failed.
        seconds: of processor time.
    """

    rounds: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def wants_more(self, examples: int) -> bool:
        """Whether there were fewer outcomes than wanted, and not too many failures to go on."""
        return self.outcomes.total() < examples and len(self.failures) < MOST_FAILURES

    def __str__(self) -> str:
        counts = (
            f"{self.outcomes[outcome]} {outcome}"
            for outcome in ("right", "refused", "wrong", "crashed")
        )
        return f"{', '.join(counts)} ({self.seconds:.0f} s of CPU)"


@dataclass(frozen=True)
class Fuzz:
    """What is generated, and the check that fails where something is wrong.

    Args:
        cases: generates one case.
        check: handles a case, and gives the outcomes ("right" or "refused") of what was in it.
    """

    cases: SearchStrategy[Any]
    check: Callable[[Any], list[str]]

    def run(self, *, examples: int) -> Counter[str]:
        """Check `examples` cases, the same every time; raises at the first that fails."""
        return self._round(examples, None)

    def go_on(self, sweep: Sweep, *, examples: int, start: int) -> None:
        """Check one more round of cases, and count what it comes to.

        A round that fails counts as one outcome, "wrong" or "crashed"; the next one has other cases.

        Args:
            sweep: what the rounds before came to.
            examples: how many outcomes are wanted in all.
            start: the seed of the first round; those after it follow from it.
        """
        begin = time.process_time()
        try:
            sweep.outcomes += self._round(min(ROUND, examples), start + 1_000_003 * sweep.rounds)
        except Exception as error:  # whatever the library raises is what is looked for
            sweep.outcomes["wrong" if isinstance(error, AssertionError) else "crashed"] += 1
            sweep.failures.append("".join(traceback.format_exception(error)))
        sweep.rounds += 1
        sweep.seconds += time.process_time() - begin

    def _round(self, examples: int, start: int | None) -> Counter[str]:
        outcomes: Counter[str] = Counter()

        @settings(
            max_examples=examples,
            deadline=None,
            database=None,
            derandomize=start is None,
            report_multiple_bugs=False,
            phases=[Phase.generate, Phase.shrink],
            suppress_health_check=list(HealthCheck),
        )
        @given(self.cases)
        def one(case: Any) -> None:
            outcomes.update(self.check(case))

        if start is None:
            one()
        else:
            seed(start)(one)()
        return outcomes


REGISTERED: dict[str, Fuzz] = {}


def register(name: str, fuzz: Fuzz) -> Fuzz:
    """Make a kind of cases part of `python -m tests.fuzz`."""
    REGISTERED[name] = fuzz
    return fuzz


def refusal(error: ValueError) -> str:
    """The outcome of a refusal, which must name a remedy."""
    assert any(remedy in str(error) for remedy in REMEDIES), f"no remedy in: {error}"
    return "refused"
