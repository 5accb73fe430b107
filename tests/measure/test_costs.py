"""A table of what ways of scoring cost, and how well each ranks."""

from __future__ import annotations

import math

import pytest

from sifting.measure.costs import Costs, WayCost

EXACT = WayCost("exact", cost=0.4, rank_correlation=1.0, recall=1.0, kept_loss=0.7)
CHEAP = WayCost("exit 1", cost=0.05, rank_correlation=0.6, recall=0.7, kept_loss=0.6, used=True)
NEW = WayCost("exit 2", cost=0.1, rank_correlation=math.nan, recall=math.nan, kept_loss=math.nan)


def test_the_gain_is_what_the_kept_carry_over_what_finding_them_costs() -> None:
    assert EXACT.gain == pytest.approx(1.0)
    assert CHEAP.gain == pytest.approx(0.6 / 0.5 / 1.05)
    assert (CHEAP.known, NEW.known) == (True, False)


def test_the_best_comes_first_and_what_is_not_known_last() -> None:
    costs = Costs([NEW, EXACT, CHEAP])
    assert [way.name for way in costs] == ["exit 1", "exact", "exit 2"]
    assert (costs[0], len(costs), costs[1:]) == (CHEAP, 3, (EXACT, NEW))


def test_it_prints_as_a_table_with_dashes_and_a_note() -> None:
    head, cheap, exact, new, note = str(
        Costs([NEW, EXACT, CHEAP], note="over 8 looks")
    ).splitlines()
    assert head.split()[:4] == ["way", "of", "scoring", "cost"]
    assert cheap.split() == ["exit", "1", "0.050", "0.60", "0.70", "0.60", "1.14", "in", "use"]
    assert exact.split()[-1] == "1.00"
    assert new.split() == ["exit", "2", "0.100", "–", "–", "–", "–"]
    assert note == "over 8 looks"
