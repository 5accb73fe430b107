from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from sifting.verdict.intervals import Estimate, mean_of, ratio_of
from sifting.verdict.power import MOST_SEEDS, detectable, error_of, power, seeds_to_settle


def test_the_error_is_that_of_the_mean() -> None:
    values = [0.3, -0.1, 0.5, 0.2]
    assert error_of(mean_of(values), log=False) == pytest.approx(stats.sem(values))
    ratios = [0.8, 0.9, 0.7]
    error = error_of(ratio_of(ratios, [1.0] * 3), log=True)
    assert error == pytest.approx(stats.sem(np.log(ratios)))
    assert error_of(mean_of([0.1, 0.1, 0.1]), log=False) is None
    assert error_of(mean_of([0.1, 0.2]), log=False) is None
    assert error_of(None, log=False) is None


@pytest.mark.parametrize(("n", "claims"), [(3, 1), (5, 1), (5, 6), (12, 3)])
def test_power_is_how_often_a_gain_is_found(n: int, claims: int) -> None:
    rng = np.random.default_rng(n)
    distance = 4.0
    values_TN = distance / math.sqrt(n) + rng.standard_normal((4000, n))
    t_T = values_TN.mean(1) / (values_TN.std(1, ddof=1) / math.sqrt(n))
    found = (t_T > stats.t.ppf(1 - 0.05 / claims / 2, n - 1)).mean()
    assert power(distance, n, claims=claims) == pytest.approx(found, abs=0.025)
    assert power(0.0, n) == power(-1.0, n) == 0.0


def test_what_is_detectable_is_found_four_times_in_five() -> None:
    found = mean_of([0.3, -0.1, 0.5, 0.2, 0.0])
    error = error_of(found, log=False)
    least, among = detectable(found, log=False), detectable(found, log=False, claims=6)
    assert error is not None
    assert least is not None
    assert among is not None
    assert power(least / error, 5) == pytest.approx(0.8, abs=1e-6)
    assert among > least
    share = detectable(ratio_of([0.8, 0.9, 1.3], [1.0] * 3), log=True)
    assert share is not None
    assert 0 < share < 1
    assert detectable(mean_of([0.1, 0.1, 0.1]), log=False) is None


def test_the_seeds_that_settle_are_the_fewest_that_do() -> None:
    found = Estimate(1.0, -0.2, 2.2, 0.08, 5)
    seeds = seeds_to_settle(found, log=False, claims=3)
    error = error_of(found, log=False)
    assert seeds is not None
    assert error is not None

    def at(n: int) -> float:
        return power(1.0 / error * math.sqrt(n / 5), n, claims=3)

    assert at(seeds) >= 0.8 > at(seeds - 1)
    assert seeds_to_settle(Estimate(1e-6, -1.0, 1.0, 1.0, 5), log=False) is None
    assert seeds <= MOST_SEEDS
