"""p(σ) against dense search, quadrature, enumeration of every outcome, and sampling."""

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize, stats

from sifting.theory import (
    SIGMA_LIMIT,
    h,
    h_argmax,
    h_max,
    p_noise,
    p_noise_many,
    rho_2_approx_lower,
    sigma_max,
)

METHODS = ("paper", "cantelli", "symmetric", "gaussian")
sigmas = st.floats(1e-6, 50)


@settings(deadline=None)
@given(sigmas)
def test_argmax_of_h_solves_the_lemmas_equation(sigma):
    t = h_argmax(sigma)
    assert np.exp(t) == pytest.approx(1 + sigma**2 / t + t / 2, rel=1e-9)
    assert t <= np.sqrt(2) * sigma  # as the lemma's proof says, for every σ


@settings(deadline=None)
@given(sigmas)
def test_maximum_of_h_against_a_search(sigma):
    found = optimize.minimize_scalar(
        lambda t: -2 * (1 - np.exp(-t)) / (2 + t**2 / sigma**2),
        bounds=(0, np.sqrt(2) * sigma),
        method="bounded",
        options={"xatol": 1e-12},
    )
    assert h_max(sigma) == pytest.approx(-found.fun, rel=1e-6)
    assert h(h_argmax(sigma), sigma) == pytest.approx(h_max(sigma), rel=1e-12)
    grid = np.linspace(0, 5 * sigma, 2001)
    assert np.all(h(grid, sigma) <= h_max(sigma) * (1 + 1e-12))


def test_extreme_sigma_neither_overflows_nor_loses_digits():
    assert h_max(1e-300) == pytest.approx(np.sqrt(2) * 1e-300 / 2, rel=1e-12)
    assert h_max(1e100) == pytest.approx(1.0)
    assert p_noise(1e200, method="cantelli") == pytest.approx(0.0, abs=1e-12)
    assert p_noise(1e200, method="gaussian") == pytest.approx(0.5)


def test_the_lemmas_constant_is_slack_up_to_its_limit():
    sigma = np.linspace(1e-3, SIGMA_LIMIT, 500)
    lemma = 0.72 * (1 - np.exp(-np.sqrt(2) * sigma))
    assert np.all(h_max(sigma) < 0.75 * lemma)  # by a quarter and more
    assert h_max(3.0) < 0.72 * (1 - np.exp(-np.sqrt(2) * 3)) < h_max(3.1)  # where it stops


@pytest.mark.parametrize("sigma", [0.05, 0.3, 1.0, 4.0])
def test_gaussian_worst_case_against_a_search(sigma):
    t = np.linspace(0, 20 * sigma, 400_001)
    lost = -np.expm1(-t) * stats.norm.sf(t / (np.sqrt(2) * sigma))
    assert 1 - p_noise(sigma, method="gaussian") == pytest.approx(lost.max(), rel=1e-7)


@settings(deadline=None)
@given(st.floats(0, SIGMA_LIMIT))
def test_each_proof_is_at_least_as_tight_as_the_one_before(sigma):
    p = [p_noise(sigma, method=m) for m in METHODS]
    assert all(a <= b + 1e-15 for a, b in pairwise(p))


@settings(deadline=None)
@given(st.floats(0, 100))
def test_beyond_the_limit_the_order_of_the_proofs_holds_too(sigma):
    p = [p_noise(sigma, method=m) for m in METHODS[1:]]
    assert p[0] <= p[1] + 1e-15 <= p[2] + 2e-15
    # and the paper's p(σ), written out, is never above what `symmetric` proves
    assert 1 - 0.72 * (1 - np.exp(-np.sqrt(2) * sigma)) <= p[1]


@pytest.mark.parametrize("method", METHODS)
def test_without_noise_nothing_is_lost(method):
    assert p_noise(0.0, method=method) == 1.0
    assert rho_2_approx_lower(1.7, 0.0, method=method) == 1.7


def expected_pick(losses, sigma, values, masses):
    """E[loss picked] for i.i.d. ζ with finitely many values, by adding up every outcome."""
    total = 0.0
    for outcome in product(range(len(values)), repeat=len(losses)):
        mass = np.prod([masses[o] for o in outcome])
        score = np.log(losses) + sigma * np.array([values[o] for o in outcome])
        best = np.flatnonzero(score >= score.max() - 1e-12)
        total += mass * np.mean(losses[best])  # ties are broken at random
    return total


@settings(deadline=None)
@given(
    st.lists(st.floats(0.01, 100), min_size=2, max_size=4),
    st.floats(0.001, 3),
    st.floats(0.02, 0.98),
)
def test_no_two_point_noise_beats_the_bounds(losses, sigma, q):
    losses = np.array(losses)
    values = np.array([np.sqrt((1 - q) / q), -np.sqrt(q / (1 - q))])  # mean 0, variance 1
    picked = expected_pick(losses, sigma, values, [q, 1 - q])
    R = losses.size
    assert picked >= p_noise_many(sigma, R) * losses.max() * (1 - 1e-9)
    assert picked >= losses.mean() * (1 - 1e-9)  # never worse than a random pick
    if R == 2:
        assert picked >= p_noise(sigma, method="symmetric") * losses.max() * (1 - 1e-9)


@pytest.mark.parametrize("sigma", [0.05, 0.2, SIGMA_LIMIT])
def test_symmetric_bound_is_within_root_two_of_the_best_possible(sigma):
    # two-point ζ with losses just under e^{2σ} apart loses (1 - e^{-2σ})/4
    lost = (1 - expected_pick(np.array([np.exp(2 * sigma) * (1 - 1e-9), 1]), sigma, [-1, 1],
                              [0.5, 0.5]) / np.exp(2 * sigma))  # fmt: skip
    claimed = 1 - p_noise(sigma, method="symmetric")
    assert lost <= claimed
    assert claimed <= np.sqrt(2) * lost * 1.5


@pytest.mark.parametrize("law", ["gaussian", "laplace", "uniform", "skewed"])
@pytest.mark.parametrize("sigma", [0.1, 0.35, 1.0])
def test_sampled_ratio_lies_above_every_bound(law, sigma):
    # 200 000 pairs, seed 0; tolerance: 4 standard errors
    rng = np.random.default_rng(0)
    f = rng.exponential(size=(200_000, 2))
    zeta = {
        "gaussian": lambda: rng.standard_normal(f.shape),
        "laplace": lambda: rng.laplace(scale=np.sqrt(0.5), size=f.shape),
        "uniform": lambda: rng.uniform(-np.sqrt(3), np.sqrt(3), f.shape),
        "skewed": lambda: rng.exponential(size=f.shape) - 1,
    }[law]()
    picked = np.where((f * np.exp(sigma * zeta)) @ [1, -1] > 0, f[:, 0], f[:, 1])
    ratio = picked.mean() / f.max(1).mean()
    error = (picked - ratio * f.max(1)).std() / np.sqrt(len(f)) / f.max(1).mean()
    assert ratio + 4 * error >= p_noise(sigma, method="symmetric")
    assert 1.5 * ratio + 8 * error >= rho_2_approx_lower(1.5, sigma, method="symmetric")
    if law == "gaussian":
        assert ratio + 4 * error >= p_noise(sigma, method="gaussian")


@settings(max_examples=8, deadline=None)
@given(st.floats(1.001, 1.99))
def test_sigma_max_is_where_p_times_rho_is_one(rho_2):
    for method in METHODS[1:]:
        at = sigma_max(rho_2, method=method)
        assert p_noise(at, method=method) * rho_2 == pytest.approx(1, abs=1e-9)
    at = sigma_max(rho_2)
    assert (1 - 0.72 * (1 - np.exp(-np.sqrt(2) * at))) * rho_2 == pytest.approx(1, abs=1e-9)
    assert rho_2_approx_lower(rho_2, 0.99 * at, method="symmetric") > 1


def test_sigma_max_at_the_ends_and_where_it_leaves_the_papers_range():
    edge = 25 * np.sqrt(np.e) / (18 + 7 * np.sqrt(np.e))
    assert edge == pytest.approx(1.3953, abs=1e-4)
    assert sigma_max(edge) == pytest.approx(SIGMA_LIMIT)
    for method in METHODS:
        assert sigma_max(1.0, method=method) == 0
    assert sigma_max(2.0) == pytest.approx(np.log(36 / 11) / np.sqrt(2))
    assert sigma_max(2.0, method="symmetric") == np.inf
    assert sigma_max(2.0, method="gaussian") == np.inf


def test_more_candidates_lose_more_but_never_all():
    p = p_noise_many(1.0, [2, 3, 10, 1000])
    assert p[0] == p_noise(1.0, method="symmetric")
    assert np.all(np.diff(p) < 0)
    assert p[-1] == 1 / 1000


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: p_noise(0.36), r"sigma = 0.36, but sigma <= 1/\(2 sqrt 2\) = 0.353553390593"),
        (lambda: p_noise(-0.1), "sigma = -0.1, but sigma >= 0"),
        (lambda: p_noise(np.nan), "sigma = nan"),
        (lambda: p_noise([0.1, 0.5]), r"sigma\[1\] = 0.5"),
        (lambda: p_noise(0.1, method="none"), "method = 'none', but"),
        (lambda: rho_2_approx_lower(0.9, 0.1), "rho_2 = 0.9, but 1 <= rho_2 <= 2"),
        (lambda: rho_2_approx_lower(2.1, 0.1), "rho_2 = 2.1, but 1 <= rho_2 <= 2"),
        (lambda: rho_2_approx_lower(1.5, 1.0), "sigma = 1, but sigma <= 1"),
        (lambda: sigma_max(25 / 7), "but 1 <= rho_2 <= 2"),
        (lambda: h(-1, 0.1), "t = -1, but t >= 0"),
        (lambda: p_noise_many(0.1, 1), "R = 1, but R whole"),
    ],
)
def test_out_of_domain_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
