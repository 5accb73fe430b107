"""Exact ρ_R against closed forms, adaptive quadrature and sampling; the bound below it."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from sifting.theory import nu, rho_gaussian, rho_gaussian_lower


@settings(deadline=None)
@given(st.floats(-1e6, 1e6))
def test_two_candidates_against_the_closed_form(a):
    # |Z1² - Z2²| = |Z1 - Z2| |Z1 + Z2|, a product of independent normals
    gain = 2 / np.pi * np.exp(-(a**2)) + 2 * a / np.sqrt(np.pi) * special.erf(a)
    assert rho_gaussian(2, a, 1) == pytest.approx(1 + gain / (1 + a**2), abs=1e-12)


def test_known_value_for_centred_errors():
    assert rho_gaussian(2, 0, 1) == pytest.approx(1 + 2 / np.pi, abs=1e-13)
    # E[max of 3 χ²_1] by a density of the maximum
    density = lambda x: x * 3 * stats.chi2.cdf(x, 1) ** 2 * stats.chi2.pdf(x, 1)  # noqa: E731
    value, _ = integrate.quad(density, 0, np.inf, epsabs=1e-12)
    assert rho_gaussian(3, 0, 1) == pytest.approx(value, abs=1e-9)


@pytest.mark.parametrize("R", [2, 9, 1000, 10**6])
@pytest.mark.parametrize(("eps", "delta"), [(0, 1), (1, 0.5), (-3, 2), (20, 1)])
def test_against_the_density_of_the_maximum(R, eps, delta):
    law = stats.ncx2(1, (eps / delta) ** 2) if eps else stats.chi2(1)
    spread = np.sqrt(2 * np.log(R)) + 8
    low, high = max(0, abs(eps / delta) - 8) ** 2, (abs(eps / delta) + spread) ** 2
    tail, _ = integrate.quad(lambda x: 1 - law.cdf(x) ** R, low, high, limit=500, epsabs=1e-10)
    exact = (low + tail) / (1 + (eps / delta) ** 2)
    assert rho_gaussian(R, eps, delta) == pytest.approx(exact, rel=1e-7)


@pytest.mark.parametrize(("R", "eps", "delta"), [(2, 0, 1), (5, 1, 2), (64, -1, 1), (1024, 0, 1)])
def test_against_sampling(R, eps, delta):
    # 20 000 maxima, seed 0; tolerance: 4 standard errors
    z = np.random.default_rng(0).normal(eps, delta, (20_000, R))
    largest = (z**2).max(1) / (eps**2 + delta**2)
    error = largest.std() / np.sqrt(len(largest))
    assert rho_gaussian(R, eps, delta) == pytest.approx(largest.mean(), abs=4 * error)


def test_limits():
    assert rho_gaussian(7, 3, 0) == 1  # no spread: all losses are equal
    assert rho_gaussian(7, 1e200, 1) == pytest.approx(1)
    assert rho_gaussian(7, 0, 1e-200) == rho_gaussian(7, 0, 1)
    assert rho_gaussian(10**6, 0, 1) == pytest.approx(2 * np.log(10**6), rel=0.12)
    growth = rho_gaussian(10**12, 0, 1) - rho_gaussian(10**9, 0, 1)
    assert growth == pytest.approx(2 * np.log(1000), rel=0.03)


@settings(deadline=None)
@given(st.integers(2, 10**6), st.floats(-50, 50), st.floats(0.01, 50))
def test_symmetric_in_eps_scale_free_and_between_one_and_R(R, eps, delta):
    rho = rho_gaussian(R, eps, delta)
    assert 1 <= rho <= R
    assert rho == rho_gaussian(R, -eps, delta)
    assert rho == pytest.approx(rho_gaussian(R, 3 * eps, 3 * delta), rel=1e-12)


@settings(deadline=None)
@given(st.integers(9, 10**6), st.floats(-50, 50), st.floats(1e-6, 50) | st.just(0.0))
def test_the_papers_bound_lies_below(R, eps, delta):
    assume(eps**2 + delta**2 > 1e-12)
    lower = rho_gaussian_lower(R, eps, delta)
    assert lower <= rho_gaussian(R, eps, delta) + 1e-12
    written_out = (eps + nu(R) * delta) ** 2 * (1 - 1 / R) / (eps**2 + delta**2)
    assert written_out <= lower * (1 + 1e-12) + 1e-15
    if eps >= 0:
        assert written_out == pytest.approx(lower, rel=1e-9, abs=1e-12)


def test_the_bound_is_defined_from_nine_candidates_on_and_above_one_from_twenty_five():
    R = np.arange(2, 1000)
    assert R[4 * np.log(R) <= R][0] == 9
    assert np.all(R[7:] >= 4 * np.log(R[7:]))
    for bad in range(2, 9):
        with pytest.raises(ValueError, match=f"R = {bad}, but R >= 4 log R"):
            nu(bad)
    centred = rho_gaussian_lower(np.arange(9, 60), 0, 1)
    assert np.flatnonzero(centred > 1)[0] + 9 == 25


def test_arrays_broadcast():
    table = rho_gaussian([[2], [4]], 0.0, [0.5, 1.0, 2.0])
    assert table.shape == (2, 3)
    assert table[1, 2] == rho_gaussian(4, 0, 2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((1, 0, 1), "R = 1, but R whole and R >= 2"),
        ((2.5, 0, 1), "R = 2.5, but R whole"),
        ((10, 0, -1), "delta = -1, but delta >= 0"),
        ((10, np.inf, 1), "eps = inf, but eps finite"),
        ((10, 0, 0), "eps = 0 with delta = 0"),
    ],
)
def test_out_of_domain_input_is_named(args, message):
    for function in (rho_gaussian, rho_gaussian_lower):
        with pytest.raises(ValueError, match=message):
            function(*args)
