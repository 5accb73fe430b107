"""Whose learning rate is which: what was tried, and what is still to be tried."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sifting.bench import protocol
from sifting.training.run_folder import read_run

HELD_OUT = "held_out_"


class RateSearch:
    """A few learning rates for every arm, and further ones where the best was the last of them.

    >>> search = RateSearch((0.1, 0.3), ("baseline",))
    >>> search.left()
    {0.1: ('baseline',), 0.3: ('baseline',)}

    Args:
        rates: that all arms are tried at.
        arms: whose learning rates are chosen.
    """

    def __init__(self, rates: Sequence[float], arms: tuple[str, ...]) -> None:
        self.rates, self.arms = tuple(rates), arms
        self.lower_is_better = False
        self._found_by_arm: dict[str, dict[float, float]] = {arm: {} for arm in arms}
        self._begun = False

    def left(self) -> dict[float, tuple[str, ...]]:
        """The learning rates that are still to be tried, and by which arms."""
        if not self._begun:
            return dict.fromkeys(self.rates, self.arms)
        return protocol.rates_beyond(self._found_by_arm, lower_is_better=self.lower_is_better)

    def take(self, rate: float, arms: Sequence[str], folder: Path) -> None:
        """Take in the runs at one learning rate.

        Args:
            rate: theirs.
            arms: that were tried at it.
            folder: of the comparison of them.
        """
        self._begun = True
        found = dict.fromkeys(arms, math.nan)  # what diverged
        for path in sorted(folder.glob("*/seed-*")):
            run = read_run(path)
            self.lower_is_better = bool(run.config.get("lower_is_better", False))
            value = chosen_by(run.config.get("metric", ""), run.summary)
            if run.config["arm"] in found and run.status == "finished" and value is not None:
                found[run.config["arm"]] = value
        for arm, value in found.items():
            self._found_by_arm[arm][rate] = value

    def best(self) -> dict[str, float]:
        """The learning rate of each arm that did not diverge at all of them."""
        return protocol.best_rates(self._found_by_arm, lower_is_better=self.lower_is_better)

    def tried(self) -> dict[str, dict[str, float]]:
        """What came of each, as it is kept."""
        return {
            arm: {f"{rate:g}": value for rate, value in found.items() if not math.isnan(value)}
            for arm, found in self._found_by_arm.items()
        }


def chosen_by(metric: str, summary: Any) -> float | None:
    """The metric by which learning rates are chosen: on held-out samples, where there are such.

    >>> chosen_by("accuracy", {"final": {"accuracy": 0.5, "held_out_accuracy": 0.6}})
    0.6
    """
    final = (summary or {}).get("final") or {}
    found = final.get(f"{HELD_OUT}{metric}", final.get(metric))
    return float(found) if isinstance(found, int | float) else None
