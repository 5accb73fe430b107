"""What a user typed becomes float arrays, or it is said what is wrong with it."""

from __future__ import annotations

import numpy as np
import pytest

from sifting.theory import _checks as checks


def test_numbers_and_arrays_become_floats():
    found = checks.positive("eta", [1, 2], "take a positive step")
    assert found.dtype == np.float64
    assert found.tolist() == [1.0, 2.0]
    assert checks.unwrap(checks.positive("eta", 3, "…")) == 3.0
    assert isinstance(checks.unwrap(np.zeros(2)), np.ndarray)


@pytest.mark.parametrize("value", ["0.1", None, [1, "x"], [[1], [1, 2]], True, 1j])
def test_what_is_no_number_is_a_type_error(value):
    with pytest.raises(TypeError, match="eta must be a number or an array of numbers, got"):
        checks.step_size(value)


@pytest.mark.parametrize(
    ("check", "value", "message"),
    [
        (checks.step_size, 0, r"eta = 0, but eta > 0 must hold: take a positive step"),
        (checks.step_size, [[0.1, np.nan]], r"eta\[0, 1\] = nan"),
        (checks.step_count, 2.5, r"K = 2.5, but K whole and K >= 1"),
        (checks.step_count, 0, r"K = 0"),
        (checks.smoothness, -1, r"L = -1"),
        (checks.loss_ratio, np.inf, r"rho = inf"),
        (lambda v: checks.mean_loss("F_star", v), -1e-9, r"F_star = -1e-09"),
        (lambda v: checks.distance("D0", v), -2, r"D0 = -2, .* it is a distance"),
        (lambda v: checks.deviation("sigma", v), -2, r"sigma = -2, .* standard deviation"),
        (lambda v: checks.candidates("R", v), 1, r"R = 1, .* two candidates or more"),
        (lambda v: checks.kept_of(v, np.array(4.0)), 5, r"k = 5, but k <= R"),
    ],
)
def test_values_out_of_their_domain_are_named_with_a_way_out(check, value, message):
    with pytest.raises(ValueError, match=message):
        check(value)


def test_large_counts_may_be_written_as_floats():
    assert checks.step_count(1e4) == 10_000
    assert checks.kept_of(4, np.array(4.0)) == 4
