"""How often scorers are rehearsed, and what they cost."""

from __future__ import annotations

import json

import pytest

from sifting.autopilot.pacing import EARLY, FEWEST, FIRST, HOPELESS, LATER, LONG, OFTEN, Pacing


def settled(cost: float, steps: int | None = 2000) -> Pacing:
    """After rehearsals that took so much of a step."""
    pacing = Pacing(steps=steps)
    while not pacing.timed(cost * 0.01, step_seconds=0.01):
        pass
    return pacing


def test_times_are_taken_over_the_first_rehearsals_only() -> None:
    pacing = settled(0.1)
    assert (pacing.settled, pacing.count) == (True, FIRST)
    assert pacing.cost == pytest.approx(0.1, rel=0.1)
    before = pacing.to_plain()
    assert not pacing.timed(5.0, step_seconds=0.01)
    assert pacing.to_plain() == before
    assert settled(0.1, steps=60).count == FEWEST, "a short run has not time for many"


def test_times_that_differ_a_little_come_to_the_same() -> None:
    assert settled(0.092).cost == settled(0.096).cost


def test_the_first_one_sets_things_up_and_does_not_count() -> None:
    pacing = Pacing(steps=1000)
    pacing.timed(60.0, step_seconds=0.01)
    while not pacing.timed(0.001, step_seconds=0.01):
        pass
    assert pacing.cost == pytest.approx(0.1, rel=0.1)


@pytest.mark.parametrize("cost", [0.001, 0.02, 0.1, 0.3])
def test_rehearsals_stay_within_their_share_of_a_step(cost: float) -> None:
    pacing = settled(cost)
    assert pacing.cost is not None
    begin = int(LONG * 2000)
    early = sum(pacing.due(step) for step in range(begin))
    later = sum(pacing.due(step) for step in range(begin, 10 * begin))
    assert early * pacing.cost <= EARLY * begin + pacing.cost
    assert later * pacing.cost <= LATER * 9 * begin + pacing.cost
    assert later <= early * 9


def test_where_choosing_cannot_pay_nothing_is_rehearsed_any_more() -> None:
    pacing = settled(1.5 * HOPELESS)
    assert pacing.hopeless
    assert not any(pacing.due(step) for step in range(2000))


def test_until_it_is_settled_it_comes_often_and_without_a_clock_a_cost_is_assumed() -> None:
    assert [Pacing().due(step) for step in range(4)] == [step % OFTEN == 0 for step in range(4)]
    pacing = Pacing(steps=100)
    while not pacing.timed(1.0, step_seconds=0.0):
        pass
    assert pacing.settled


def test_it_is_part_of_the_state() -> None:
    pacing, again = settled(0.1), Pacing(steps=2000)
    again.load(json.loads(json.dumps(pacing.to_plain())))
    assert again == pacing
