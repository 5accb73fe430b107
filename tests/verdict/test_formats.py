"""Numbers of a verdict as people read them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sifting.verdict import Verdict
from sifting.verdict.formats import (
    count,
    duration,
    gap,
    p_value,
    percent,
    points,
    ratio,
    short,
    shown_metric,
    spread,
)
from sifting.verdict.intervals import Estimate
from tests.helpers.verdicts import PLAIN, UPDATES, comparison


@pytest.fixture(scope="module")
def shares() -> Verdict:
    """A verdict whose metric is a share."""
    return comparison(UPDATES, baseline=PLAIN)


@pytest.fixture(scope="module")
def losses(shares: Verdict) -> Verdict:
    return replace(shares, percent=False, metric="loss")


def test_a_metric_has_its_unit(shares: Verdict, losses: Verdict) -> None:
    assert shown_metric(shares, 0.7796).plain() == "77.96 %"
    assert shown_metric(losses, 1.23456).plain() == "`loss` 1.235"
    assert (points(shares, 0.018), points(shares, 0.25)) == ("1.8 points", "25 points")
    assert points(losses, 0.0184) == "0.018"
    assert (spread(shares, 0.0123), spread(losses, 0.0123)) == ("1.23 points", "0.0123")


def test_a_difference_shows_its_side_and_its_interval(shares: Verdict, losses: Verdict) -> None:
    estimate = Estimate(-0.0114, -0.0363, 0.0134, 0.2, 3)
    assert gap(shares, estimate) == "−1.14 points (−3.63 to +1.34)"
    assert gap(losses, estimate) == "−0.0114 (−0.0363 to +0.0134)"
    assert gap(shares, replace(estimate, low=None, high=None)) == "−1.14 points"
    alike = replace(estimate, low=-0.0114, high=-0.0114)
    assert gap(shares, alike) == "−1.14 points (every seed)"


@pytest.mark.parametrize(
    ("ends", "shown"),
    [
        ((0.86, 0.97), "0.91 (0.86–0.97)"),
        ((0.97, 0.998), "0.910 (0.970–0.998)"),
        ((0.97, 0.9996), "0.9100 (0.9700–0.9996)"),
        ((0.9, 1.1), "0.91 (0.90–1.10)"),
        ((1.0, 1.0), "0.91 (1.00–1.00)"),
        ((None, None), "0.91"),
    ],
)
def test_a_ratio_has_digits_enough_to_see_its_side_of_one(ends, shown) -> None:
    assert ratio(Estimate(0.91, *ends, 0.01, 3)) == shown


@pytest.mark.parametrize("high", [0.9951, 0.9999, 1.0001, 1.0049, 0.95, 1.2])
def test_no_ratio_is_rounded_to_the_other_side(high: float) -> None:
    shown = ratio(Estimate(0.9, 0.85, high, 0.01, 5))
    end = float(shown.rpartition("–")[2].rstrip(")"))
    assert (end - 1) * (high - 1) >= 0


def test_numbers_in_sentences() -> None:
    assert (short(-0.001), short(12.50), short(7.0, 0)) == ("0", "12.5", "7")
    assert (percent(0.5), percent(0.0042)) == ("50 %", "0.4 %")
    assert (duration(119.0), duration(121.0)) == ("119 s", "2.02 min")
    assert p_value(0.0004) == "p < 0.001 after Holm's correction"
    assert p_value(0.0321).startswith("p = 0.032 ")
    assert (count(0, "seed"), count(1, "run"), count(1200, "run")) == (
        "0 seeds",
        "1 run",
        "1,200 runs",
    )
