"""Lessons for ways of scoring that are not in use."""

from __future__ import annotations

import math

from sifting.exits.teaching import FEW, MOST, SHARE, lessons
from sifting.measure.costs import WayCost


def _way(name: str, cost: float, kept: float = 0.6) -> WayCost:
    return WayCost(name, cost, rank_correlation=0.5, recall=0.7, kept_loss=kept)


def test_all_of_them_together_take_their_share_of_the_time() -> None:
    ways = [_way(str(i), cost) for i, cost in enumerate((0.02, 0.3, 0.05, 1.0, 0.01))]
    for steps in (10, 100, 400, 1200, 3600, 100_000):
        names, many = lessons(ways, steps)
        spent = many * sum(way.cost for way in ways if way.name in names)
        assert spent <= SHARE * steps
        assert many <= min(MOST, steps)
    assert names == list("01234")


def test_rather_a_few_learn_enough_than_all_too_little() -> None:
    ways = [_way("near", 0.1), _way("dear", 0.4), _way("cheap", 0.02)]
    names, many = lessons(ways, 400)
    assert names == ["near", "cheap"]
    assert many >= FEW


def test_the_nearest_has_what_there_is_time_for() -> None:
    assert lessons([_way("near", 1.0)], 400) == (["near"], 4)
    assert lessons([_way("near", 8.0), _way("far", 2.0)], 400) == (["far"], 2)


def test_what_costs_nothing_has_all_the_lessons_and_what_is_not_known_none() -> None:
    assert lessons([_way("free", 0.0), _way("?", math.nan)], 400) == (["free"], MOST)
    assert lessons([], 400) == ([], 0)
    assert lessons([_way("near", 0.1)], 0) == ([], 0)
