"""The clock that operations are timed by."""

from __future__ import annotations

import time

import pytest

from sifting.measure import stopwatch
from sifting.measure.stopwatch import now, timed_by


def spent(seconds: float) -> float:
    before = now()
    time.sleep(seconds)
    return now() - before


def test_waiting_takes_time_that_passes_and_none_that_is_computed() -> None:
    assert spent(0.05) >= 0.05
    with timed_by("cpu"):
        assert spent(0.05) < 0.04


def test_the_clock_of_before_is_back_also_after_an_error() -> None:
    before = stopwatch._now
    with pytest.raises(KeyError), timed_by("cpu"), timed_by("wall"):
        assert stopwatch._now is time.perf_counter
        raise KeyError
    assert stopwatch._now is before
    with pytest.raises(KeyError), timed_by("sundial"):
        pass
    assert stopwatch._now is before
