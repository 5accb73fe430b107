"""Generated cases: each is handled right, by a reference of its own, or refused; none is wrong.

A module here registers what it generates and how it is checked. `make test` runs a few hundred cases
of each through pytest; `python -m tests.fuzz --examples 100000` runs as many as wanted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis.strategies import SearchStrategy

REMEDIES = ("take=", "batch_size=", "collate", "forward=", "labels=", "losses=", "loss_fn=")


@dataclass(frozen=True)
class Fuzz:
    """What is generated, and the check that fails where something is wrong.

    Args:
        cases: generates one case.
        check: handles a case, and gives the outcomes ("right" or "refused") of what was in it.
    """

    cases: SearchStrategy[Any]
    check: Callable[[Any], list[str]]

    def run(self, *, examples: int, start: int | None = None) -> Counter[str]:
        """Check generated cases until there were `examples` outcomes; raises at the first wrong one.

        Args:
            examples: how many outcomes at least.
            start: the seed; without one, the same `examples` cases every time.
        """
        outcomes: Counter[str] = Counter()
        round_number = 0
        while outcomes.total() < examples:

            @settings(
                max_examples=min(5000, max(50, examples - outcomes.total())),
                deadline=None,
                database=None,
                derandomize=start is None,
                verbosity=Verbosity.normal,
                phases=[Phase.generate, Phase.shrink],
                suppress_health_check=list(HealthCheck),
            )
            @given(self.cases)
            def one(case: Any) -> None:
                outcomes.update(self.check(case))

            if start is None:
                one()
                break
            # a new seed each round: Hypothesis remembers all cases of a round, so rounds are short
            seed(start + 1_000_003 * round_number)(one)()
            round_number += 1
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
