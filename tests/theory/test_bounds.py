"""The bounds against exact fractions, their crossing against a root finder."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from sifting.theory import (
    best_step_size,
    crossover_iterations,
    crossover_value,
    gsgd_bound,
    sgd_bound,
    step_size_ok,
    step_speedup,
)

GOOD = {"eta": 0.01, "L": 50.0, "D0": 2.0, "rho": 1.5, "Delta": 0.3, "F_star": 0.1}

problems = st.fixed_dictionaries(
    {
        "L": st.floats(0.01, 100),
        "fraction": st.floats(0.01, 0.95),  # η in units of 1/L
        "D0": st.floats(0.1, 100),
        "rho": st.floats(1.01, 8),
        "F_star": st.floats(0.001, 10),
        "excess": st.floats(0.01, 5),  # Δ / (ρ F*) - 1
    }
)


def unpack(p):
    eta = p["fraction"] / p["L"]
    Delta = p["rho"] * p["F_star"] * (1 + p["excess"])
    return eta, p["L"], p["D0"], p["rho"], Delta, p["F_star"]


@pytest.mark.parametrize("K", [1, 7, 10**9])
def test_bounds_equal_the_theorems_in_exact_arithmetic(K):
    eta, L, D0, rho, Delta, F = map(Fraction, ("1/100", "50", "2", "3/2", "3/10", "1/10"))
    gsgd = D0**2 / (2 * rho * eta * (1 - eta * L) * K) + Delta / (rho * (1 - eta * L))
    sgd = D0**2 / (2 * eta * (1 - eta * L) * K) + eta * L * F / (1 - eta * L) + F
    assert gsgd_bound(K, 0.01, 50, 2, 1.5, 0.3) == pytest.approx(float(gsgd), rel=1e-14)
    assert sgd_bound(K, 0.01, 50, 2, 0.1) == pytest.approx(float(sgd), rel=1e-14)


def test_scalars_give_floats_and_arrays_broadcast():
    assert type(gsgd_bound(10, 0.01, 50, 2, 1.5, 0.3)) is float
    table = gsgd_bound(np.array([1, 10, 100])[:, None], 0.01, 50, 2, np.array([1.0, 2.0]), 0.3)
    assert table.shape == (3, 2)
    assert table[1, 1] == gsgd_bound(10, 0.01, 50, 2, 2.0, 0.3)


@settings(deadline=None)
@given(problems)
def test_crossover_is_the_root_of_the_difference(p):
    eta, L, D0, rho, Delta, F = unpack(p)

    def difference(log_K):
        K, slack = np.exp(log_K), 1 - eta * L
        gsgd = D0**2 / (2 * rho * eta * slack * K) + Delta / (rho * slack)
        return gsgd - D0**2 / (2 * eta * slack * K) - F / slack

    K = np.exp(optimize.brentq(difference, -60, 60, xtol=1e-13))
    assert crossover_iterations(eta, L, D0, rho, Delta, F) == pytest.approx(K, rel=1e-8)
    value = D0**2 / (2 * eta * (1 - eta * L) * K) + F / (1 - eta * L)
    assert crossover_value(eta, L, rho, Delta, F) == pytest.approx(value, rel=1e-8)


@settings(deadline=None)
@given(problems, st.integers(1, 10**7))
def test_gsgd_leads_exactly_up_to_the_crossover(p, K):
    eta, L, D0, rho, Delta, F = unpack(p)
    at = crossover_iterations(eta, L, D0, rho, Delta, F)
    ahead = gsgd_bound(K, eta, L, D0, rho, Delta) < sgd_bound(K, eta, L, D0, F)
    if abs(K - at) > 1e-6 * at:
        assert ahead == (at > K)


def test_crossover_where_it_degenerates():
    def both(**changes):
        c = GOOD | changes
        value = crossover_value(c["eta"], c["L"], c["rho"], c["Delta"], c["F_star"])
        return crossover_iterations(**c), value

    assert both(Delta=1.5 * 0.1) == (np.inf, pytest.approx(0.1 / 0.5))  # one floor
    assert both(F_star=0.0, Delta=0.0) == (np.inf, 0.0)  # a perfect fit exists
    assert both(rho=1.0) == (0.0, np.inf)
    assert both(rho=0.5) == (0.0, np.inf)  # noise worse than random
    assert both(rho=1.0, Delta=0.1) == (0.0, np.inf)  # equal bounds: not ahead
    assert both(D0=0.0)[0] == 0.0
    assert both(D0=0.0, Delta=0.15)[0] == 0.0


def test_rounding_below_the_inequality_counts_as_equality():
    F, rho = 0.1, 1.1
    assert crossover_iterations(0.01, 50, 2, rho, np.nextafter(rho * F, 0), F) == np.inf


@settings(deadline=None)
@given(problems, st.floats(1.001, 1e6))
def test_speedup_is_the_ratio_of_steps_and_at_most_rho(p, factor):
    eta, L, D0, rho, Delta, F = unpack(p)
    value = factor * max(Delta / rho, F) / (1 - eta * L)
    need_gsgd = D0**2 / (2 * eta) / ((1 - eta * L) * rho * value - Delta)
    need_sgd = D0**2 / (2 * eta) / ((1 - eta * L) * value - F)
    speedup = step_speedup(value, eta, L, rho, Delta, F)
    assert speedup == pytest.approx(need_sgd / need_gsgd, rel=1e-6)
    assert speedup <= rho


def test_speedup_below_gsgds_floor_is_zero_and_at_the_crossing_one():
    args = [GOOD[k] for k in ("eta", "L", "rho", "Delta", "F_star")]
    assert step_speedup(0.3, *args) == 0
    assert step_speedup(crossover_value(*args), *args) == pytest.approx(1)
    with pytest.raises(ValueError, match=r"value = 0.2, but value > F_star"):
        step_speedup(0.2, *args)


@settings(deadline=None)
@given(problems, st.integers(1, 10**6))
def test_best_step_size_is_where_a_minimiser_finds_it(p, K):
    _, L, D0, rho, Delta, _ = unpack(p)
    eta = best_step_size(K, L, D0, Delta)
    found = optimize.minimize_scalar(
        lambda f: (D0**2 / (2 * f / L * K) + Delta) / (1 - f),
        bounds=(1e-9, 1 - 1e-9),
        method="bounded",
        options={"xatol": 1e-10},
    )
    assert gsgd_bound(K, eta, L, D0, rho, Delta) * rho <= found.fun * (1 + 1e-9)
    assert step_size_ok(eta, L)


def test_best_step_size_without_a_floor_is_half_the_limit():
    assert best_step_size(100, 50, 2, 0.0) == pytest.approx(1 / 100)


def test_step_size_condition():
    assert step_size_ok(0.0199, 50)
    assert not step_size_ok(0.02, 50)
    assert not step_size_ok(0.0, 50)
    assert not step_size_ok([0.01, 0.03], 50)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"eta": 0.02}, r"eta = 0.02 with L = 50, but eta < 1/L = 0.02"),
        ({"eta": 0.0}, r"eta = 0, but eta > 0"),
        ({"eta": np.nan}, r"eta = nan, but eta > 0"),
        ({"L": 0.0}, r"L = 0, but L > 0"),
        ({"L": np.inf}, r"L = inf, but L > 0"),
        ({"D0": -1.0}, r"D0 = -1, but D0 >= 0"),
        ({"rho": 0.0}, r"rho = 0, but rho > 0"),
        ({"rho": -2.0}, r"rho = -2, but rho > 0"),
        ({"Delta": -0.1}, r"Delta = -0.1, but Delta >= 0"),
        ({"F_star": -0.1}, r"F_star = -0.1, but F_star >= 0"),
        ({"Delta": 0.1}, r"Delta = 0.1 with rho = 1.5 and F_star = 0.1, but Delta >= rho F_star"),
        ({"R": 1}, r"R = 1, but R whole and R >= 2"),
        ({"R": 2.5}, r"R = 2.5, but R whole"),
        ({"rho": 3.0, "R": 2, "Delta": 9.0}, r"rho = 3, but rho <= R"),
    ],
)
def test_out_of_domain_input_is_named(changes, message):
    args = GOOD | changes
    with pytest.raises(ValueError, match=message):
        crossover_iterations(**args)
    with pytest.raises(ValueError, match=message):
        gsgd_bound(K=10, **args)


@pytest.mark.parametrize("K", [0, -1, 1.5, np.nan, np.inf])
def test_steps_must_be_whole_and_positive(K):
    with pytest.raises(ValueError, match="K whole and K >= 1"):
        gsgd_bound(K, 0.01, 50, 2, 1.5, 0.3)
    with pytest.raises(ValueError, match="K whole and K >= 1"):
        sgd_bound(K, 0.01, 50, 2, 0.1)


def test_the_offending_entry_of_an_array_is_named():
    with pytest.raises(ValueError, match=r"D0\[2\] = -3"):
        sgd_bound(1, 0.01, 50, [1, 2, -3], 0.1)
    with pytest.raises(ValueError, match=r"eta = 0.5 with L = 50"):
        sgd_bound(1, [0.01, 0.5], 50, 1, 0.1)
    with pytest.raises(TypeError, match="L must be a number"):
        sgd_bound(1, 0.01, "fifty", 1, 0.1)
    with pytest.raises(TypeError, match="L must be a number"):
        sgd_bound(1, 0.01, None, 1, 0.1)
