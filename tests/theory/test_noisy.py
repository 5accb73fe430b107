"""ρ under noise for three laws of the loss: closed forms, quadrature, sampling, and the bounds."""

import numpy as np
import pytest
from scipy import integrate, special, stats

from sifting.theory import (
    kept_share,
    p_noise_many,
    rho_gaussian,
    rho_noisy,
    sample_rho_noisy,
)


def test_without_noise_against_closed_forms():
    R = np.array([2, 3, 8, 100])
    assert np.allclose(rho_noisy(R, 0), rho_gaussian(R, 0, 1), atol=1e-9)
    harmonic = [sum(1 / i for i in range(1, r + 1)) for r in R]
    assert np.allclose(rho_noisy(R, 0, law="exponential"), harmonic, atol=1e-9)
    # the mean of the top k exponentials: 1 + Σ_{i>k} 1/i
    top = 1 + sum(1 / i for i in range(4, 11))
    assert rho_noisy(10, 0, k=3, law="exponential") == pytest.approx(top, abs=1e-9)


@pytest.mark.parametrize(("spread", "sigma"), [(1, 0), (1, 0.3), (0.2, 1), (2.5, 4), (1e-3, 0.01)])
@pytest.mark.parametrize(("R", "k"), [(2, 1), (5, 1), (16, 8), (16, 15)])
def test_lognormal_against_one_integral(spread, sigma, R, k):
    # log f and log f̃ are jointly normal: ρ = (R/k) E[I_{Φ(Z + a)}(R - k, k)], a = s²/√(s² + σ²)
    a = spread**2 / np.hypot(spread, sigma)
    value, _ = integrate.quad(
        lambda z: stats.norm.pdf(z) * special.betainc(R - k, k, special.ndtr(z + a)),
        -11, 11, epsabs=1e-13, limit=400,
    )  # fmt: skip
    got = rho_noisy(R, sigma, k=k, law="lognormal", spread=spread)
    assert got == pytest.approx(R / k * value, abs=1e-8)
    if R == 2:
        assert got == pytest.approx(2 * special.ndtr(a / np.sqrt(2)), abs=1e-8)


@pytest.mark.parametrize("law", ["gaussian", "exponential"])
@pytest.mark.parametrize("sigma", [0.2, 1.5])
def test_a_pair_against_scipys_double_integral(law, sigma):
    # E[f₁ P(σ(ζ₂ - ζ₁) < log f₁/f₂)] twice, over both losses
    quantile = {
        "gaussian": lambda t: special.ndtri(special.ndtr(t) / 2) ** 2,
        "exponential": lambda t: -special.log_ndtr(t),
    }[law]

    def inner(s, t):
        f, g = quantile(s), quantile(t)
        chance = special.ndtr((np.log(f) - np.log(g)) / (np.sqrt(2) * sigma))
        return 2 * f * chance * stats.norm.pdf(s) * stats.norm.pdf(t)

    # a product rule in the normal scale of each loss
    nodes, weights = np.polynomial.legendre.leggauss(400)
    s, t = np.meshgrid(8.2 * nodes, 8.2 * nodes, indexing="ij")
    value = 8.2**2 * (weights @ inner(s, t) @ weights)
    assert rho_noisy(2, sigma, law=law) == pytest.approx(value, abs=1e-8)


@pytest.mark.parametrize("law", ["gaussian", "exponential", "lognormal"])
def test_against_sampling(law):
    # 20 000 draws each, seed 0; tolerance: 4.5 standard errors, over 12 comparisons
    for R, k in ((2, 1), (8, 1), (32, 16), (5, 5)):
        for sigma in (0.1, 0.8, 3.0):
            value, error = sample_rho_noisy(R, sigma, k=k, law=law)
            assert abs(value - rho_noisy(R, sigma, k=k, law=law)) <= 4.5 * error


def test_the_bounds_are_below_every_law():
    for law, spread in (("gaussian", 1), ("exponential", 1), ("lognormal", 0.3), ("lognormal", 3)):
        for R, k in ((2, 1), (8, 1), (64, 1), (64, 32)):
            for sigma in (0.05, 0.5, 2.0):
                noisy, exact = (rho_noisy(R, s, k=k, law=law, spread=spread) for s in (sigma, 0))
                assert 1 <= noisy <= exact
                for method in ("any", "gaussian_lower", *(["gaussian"] if k == 1 else [])):
                    assert noisy / exact >= p_noise_many(sigma, R, k=k, method=method) - 1e-9


def test_many_candidates_keep_what_the_law_says():
    # the top half of 2000 carry what the top half of the law does
    for law in ("gaussian", "exponential", "lognormal"):
        whole = kept_share(0.5, law=law)
        assert rho_noisy(2000, 0, k=1000, law=law) == pytest.approx(2 * whole, abs=2e-3)


def test_edges():
    assert rho_noisy(4, 2.0, k=4) == 1
    assert rho_noisy(2, 10.0, law="lognormal", spread=0.5) == pytest.approx(1, abs=0.02)
    assert rho_noisy([2, 3], [[0.1], [0.2]]).shape == (2, 2)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rho_noisy(1, 0.1), "R = 1"),
        (lambda: rho_noisy(4, -0.1), "sigma = -0.1"),
        (lambda: rho_noisy(4, 11), "sigma = 11, but 0 <= sigma <= 10"),
        (lambda: rho_noisy(4, 0.1, k=5), "k = 5, but k <= R"),
        (lambda: rho_noisy(4, 0.1, law="normal"), "law = 'normal', but"),
        (lambda: rho_noisy(4, 0.1, spread=0.0), "spread = 0, but 0 < spread <= 5"),
        (lambda: sample_rho_noisy(4, 0.1, k=5), "k = 5, but k <= R"),
        (lambda: sample_rho_noisy(4, 0.1, draws=1), "draws = 1"),
        (lambda: sample_rho_noisy(4, 0.1, law="normal"), "law = 'normal', but"),
    ],
)
def test_out_of_domain_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
