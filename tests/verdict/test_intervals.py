from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from sifting.verdict.intervals import holm, mean_of, ratio_of


def test_the_interval_is_students() -> None:
    values = [0.3, -0.1, 0.5, 0.2]
    found, known = mean_of(values), stats.ttest_1samp(values, 0.0)
    low, high = known.confidence_interval(0.95)
    assert (found.low, found.high, found.p) == pytest.approx((low, high, known.pvalue))
    assert found.above(-1.0)
    assert not found.above(0.0)
    assert found.below(1.0)


def test_coverage_is_95_percent() -> None:
    rng = np.random.default_rng(0)
    inside = [
        not (found.above(0.0) or found.below(0.0))
        for found in (mean_of(rng.standard_normal(5).tolist()) for _ in range(2000))
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015)


def test_equal_values_have_no_spread_and_too_few_no_interval() -> None:
    assert mean_of([0.0, 0.0, 0.0]).p == 1.0
    assert mean_of([0.1, 0.1, 0.1]).p == 0.25  # as a sign test has it: three heads or three tails
    assert mean_of([0.1, 0.2]).low is None
    with pytest.raises(ValueError, match="no pair"):
        mean_of([])
    with pytest.raises(ValueError, match="positive"):
        ratio_of([1.0], [0.0])


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=3, max_size=8))
def test_turning_a_ratio_over_turns_its_interval_over(pairs: list[tuple[float, float]]) -> None:
    above, below = [a for a, _ in pairs], [b for _, b in pairs]
    one, two = ratio_of(above, below), ratio_of(below, above)
    assert one.value == pytest.approx(1 / two.value)
    assert one.low is not None
    assert two.high is not None
    assert one.low == pytest.approx(1 / two.high)
    assert one.value == pytest.approx(math.exp(np.mean(np.log(np.array(above) / below))))


@given(st.lists(st.floats(0, 1), max_size=8))
def test_holm_keeps_the_order_and_lies_between_none_and_bonferroni(ps: list[float]) -> None:
    found = holm(ps)
    assert all(p <= q <= min(1.0, len(ps) * p) for p, q in zip(ps, found, strict=True))
    order = sorted(range(len(ps)), key=lambda i: ps[i])
    assert [found[i] for i in order] == sorted(found)
