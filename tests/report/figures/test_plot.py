from __future__ import annotations

import math

import pytest

from sifting.report.figures.plot import FAR, Axis, axis, reach, ticks, written


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (0.0, 1.0),
        (0.0, 43.0),
        (-3.0, 7.0),
        (98.31, 98.33),
        (1e-9, 3e-9),
        (-1e300, 1e300),
        (0.0, 1e9),
    ],
)
@pytest.mark.parametrize("most", [2, 4, 7])
def test_ticks_are_round_within_the_ends_and_few(low: float, high: float, most: int) -> None:
    found, step = ticks(low, high, most)
    assert 1 <= len(found) <= most + 1
    slack = 1e-6 * step
    assert all(low - slack <= value <= high + slack for value in found)
    leading = step / 10 ** math.floor(math.log10(step))
    assert any(math.isclose(leading, wanted) for wanted in (1, 2, 2.5, 5))
    assert len({written(value, step) for value in found}) == len(found), (
        "each is told from the next"
    )


@pytest.mark.parametrize(
    "ends", [(0.0, math.inf), (-1.7e308, 1.7e308), (math.nan, 1.0), (3.0, 3.0), (5.0, 1.0)]
)
def test_ends_that_no_axis_has_cost_no_figure(ends: tuple[float, float]) -> None:
    found = axis("x", ends, 4.0)
    assert len(found.ticks) <= 8
    for value in (0.0, 1e308, -1e308, math.inf, math.nan):
        assert -FAR <= found.share(value) <= FAR


def test_what_is_far_out_of_sight_is_put_at_a_place_that_can_be_written() -> None:
    side = Axis("", 0.0, 1.0)
    assert (side.share(1e300), side.share(-1e300)) == (FAR, -FAR)
    assert Axis("", 1.0, 8.0, log=True).share(-5.0) == -FAR


def test_labels_that_would_run_into_each_other_are_fewer() -> None:
    short = axis("", (0.0, 7.0), 4.0)
    long = axis("", (0.0, 7.0), 4.0, write=lambda value: f"{value:.9f}")
    assert len(long.ticks) < len(short.ticks)
    up = axis("", (0.0, 7.0), 4.0, side="y", write=lambda value: f"{value:.9f}")
    assert len(up.ticks) >= len(short.ticks), "above each other they have room"


def test_what_is_shown_has_a_margin_and_one_value_some_room() -> None:
    assert reach([2.0, 4.0]) == pytest.approx((1.9, 4.1))
    assert reach([math.nan, 2.0, 4.0, math.inf]) == pytest.approx((1.9, 4.1))
    low, high = reach([5.0, 5.0])
    assert low < 5.0 < high
    assert reach([0.0])[0] < 0.0 < reach([0.0])[1]
    assert reach([-1.7e308, 1.7e308]) == (-1.7e308, 1.7e308)
