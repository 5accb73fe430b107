"""Expectations of the largest of R draws."""

from __future__ import annotations

import numpy as np
import pytest

from sifting.theory._order import mean_of_largest, mean_of_largest_square, panels, top_weights


def test_order_weights_are_those_of_all_subsets():
    for n, R in [(5, 2), (7, 3), (6, 6), (4, 1), (300, 150)]:
        weights = top_weights(n, R)
        assert weights.sum() == pytest.approx(1)
        assert np.all(weights[: R - 1] == 0)
    assert mean_of_largest(np.array([5.0, 1.0, 3.0, 2.0]), 3) == pytest.approx((5 * 3 + 3) / 4)


def test_quadrature_panels_take_square_roots_at_their_edges():
    x, w = panels([0, 1, 4], 8)
    assert w @ np.sqrt(np.abs(x - 1)) == pytest.approx(2 / 3 + 2 / 3 * 3**1.5, abs=1e-12)
    # |z| is 2 surely: every maximum of squares is 4
    value = mean_of_largest_square(lambda t: np.where(t < 2, 1.0, 0.0), [0, 2, 3], 5)
    assert value == pytest.approx(4, abs=1e-12)
