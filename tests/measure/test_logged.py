"""The names under which a sifter's stats go to loggers."""

from __future__ import annotations

from sifting.measure.logged import logged, numbers
from sifting.measure.meter import Meter


def test_the_stats_of_a_sifter_are_flat_names_and_numbers() -> None:
    found = logged(Meter().stats())
    assert found["sifting/steps"] == 0.0
    assert found["seconds/scoring"] == 0.0
    assert all(name.startswith(("sifting/", "seconds/")) for name in found)
    assert "sifting/recall" not in found, "not measured yet"
    assert "sifting/why" not in found, "no number"


def test_some_of_them_may_be_asked_for() -> None:
    assert set(logged(Meter().stats(), only=["steps", "recall"])) == {"sifting/steps"}


def test_only_numbers_are_numbers() -> None:
    assert numbers({"a": 1, "b": 2.5, "c": True, "d": "3", "e": None}) == {"a": 1.0, "b": 2.5}
