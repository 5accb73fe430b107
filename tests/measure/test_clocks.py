"""What a run's time is spent on, and what it is charged."""

from __future__ import annotations

from sifting.measure.clocks import (
    CLOCKS,
    COUNTED,
    OPERATIONS,
    UPDATE,
    charged,
    of_update,
    repetitions,
)
from sifting.measure.meter import Meter


def test_every_operation_is_counted_once() -> None:
    assert set(OPERATIONS) == {*COUNTED, *UPDATE}
    assert len(OPERATIONS) == len(set(OPERATIONS))
    assert set(CLOCKS) - set(OPERATIONS) == {"evaluation"}, "which no arm is charged for"
    assert set(COUNTED.values()) <= set(Meter.COUNTS), "by what a sifter counts"


def test_a_charge_is_the_price_times_how_often() -> None:
    counts = {name: 10 * (i + 1) for i, name in enumerate(COUNTED.values())}
    table = dict.fromkeys(OPERATIONS, 0.5)
    done = repetitions(7, counts)
    assert done["forward"] == done["optimizer"] == 7
    assert charged(table, 7, counts) == {name: 0.5 * done[name] for name in OPERATIONS}


def test_what_has_no_price_or_was_not_done_costs_nothing() -> None:
    assert charged({}, 5, {"selections": 3}) == dict.fromkeys(OPERATIONS, 0.0)
    assert charged({"scoring": 2.0, "forward": 1.0}, 0, {}) == dict.fromkeys(OPERATIONS, 0.0)


def test_an_update_is_its_three_parts() -> None:
    table = {name: 2.0**i for i, name in enumerate(OPERATIONS)}
    assert of_update(table) == sum(table[name] for name in UPDATE)
