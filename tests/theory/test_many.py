"""p(σ) for any R and any k: quadrature, enumeration of every outcome, and sampling."""

import itertools
import math

import numpy as np
import pytest
from scipy import integrate, optimize, special

from sifting.theory import normal_max, p_noise, p_noise_many, sigma_max

P = 1000


def chances(log_f, sigma):
    """P(each is picked) under Gaussian noise, by quadrature, for (P, R) log-losses."""
    z = np.linspace(-8, 8, 161)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi) * (z[1] - z[0])
    out = []
    for j in range(log_f.shape[1]):
        ahead = (log_f[:, j : j + 1] - np.delete(log_f, j, 1)) / sigma[:, None]
        out.append(np.prod(special.ndtr(z + ahead[..., None]), axis=1) @ density)
    return np.stack(out, 1)


@pytest.mark.parametrize("R", [2, 3, 5])
def test_gaussian_is_below_every_problem_and_attained_by_one(R):
    # 1 000 random vectors of losses, of every spread; no sampling
    rng = np.random.default_rng(R)
    sigma = np.exp(rng.uniform(-4, 2, P))
    log_f = -sigma[:, None] * rng.exponential(size=(P, R)) * rng.choice([0.1, 1, 5], (P, 1))
    log_f[:, 0] = 0.0
    log_f[:200, 2:] = log_f[:200, 1:2]  # the shape of the worst case
    log_f[200:250] = 0.0  # equal losses
    share = (chances(log_f, sigma) * np.exp(log_f)).sum(1)
    exact = p_noise_many(sigma, R, method="gaussian")
    lower = p_noise_many(sigma, R, method="gaussian_lower")
    assert np.all(share >= exact - 1e-9)
    assert np.all(exact >= lower - 1e-12)
    assert np.all(lower >= p_noise_many(sigma, R) - 1e-12)
    t = np.linspace(0.01, 6, 300)
    for s, p in zip(sigma[:2], exact[:2], strict=True):
        worst = np.zeros((300, R))
        worst[:, 1:] = -s * t[:, None]
        found = (chances(worst, np.full(300, s)) * np.exp(worst)).sum(1).min()
        assert p == pytest.approx(found, abs=2e-4)
        assert p <= found + 1e-9


@pytest.mark.parametrize(("R", "sigma"), [(2, 0.3), (3, 0.01), (3, 4.0), (16, 1.0), (1000, 0.3)])
def test_gaussian_against_scipys_quadrature(R, sigma):
    def share(t):
        def right(z):
            return math.exp(-z * z / 2 + (R - 1) * special.log_ndtr(z + t / sigma))

        picked = integrate.quad(right, -9, 9, epsabs=1e-11, limit=400)[0] / math.sqrt(2 * math.pi)
        return 1 + np.expm1(-t) * (1 - picked)

    p = p_noise_many(sigma, R, method="gaussian")
    found = optimize.minimize_scalar(
        share, bounds=(0, 8 * sigma), method="bounded", options={"xatol": 1e-5 * sigma}
    )
    assert p == pytest.approx(found.fun, abs=1e-8)


def test_the_worst_case_against_sampling():
    # one loss against R - 1 equal ones, 100 000 draws, seed 0; tolerance: 4 standard errors
    rng = np.random.default_rng(0)
    for R, sigma in ((3, 0.5), (8, 1.0)):
        worst = 1.0
        for t in sigma * np.linspace(0.4, 1.6, 13):
            noise = sigma * rng.standard_normal((100_000, R))
            right = (noise[:, 0] > noise[:, 1:].max(1) - t).mean()
            worst = min(worst, 1 - (1 - np.exp(-t)) * (1 - right))
        assert p_noise_many(sigma, R, method="gaussian") == pytest.approx(worst, abs=0.004)


def test_two_candidates_are_as_before():
    sigma = np.array([0, 1e-3, 0.1, 1, 30, 1e100])
    pair = p_noise(sigma, method="gaussian")
    assert np.allclose(p_noise_many(sigma, 2, method="gaussian"), pair, atol=1e-12)
    union = p_noise(sigma, method="symmetric")
    assert np.all(p_noise_many(sigma, 2) >= union)
    assert p_noise_many(0.3, 2) > p_noise(0.3, method="symmetric")  # e^{-σ/√3} is the larger


def test_no_two_point_noise_beats_the_bound_for_any_k():
    # 1 000 random vectors of up to 5 losses and laws of noise; every outcome added up
    rng = np.random.default_rng(0)
    checked = 0
    for R in (2, 3, 4, 5):
        count = P // 4
        sigma = np.exp(rng.uniform(-4, 1.5, count))
        log_f = sigma[:, None] * rng.standard_normal((count, R)) * rng.choice([0.3, 2], (count, 1))
        q = rng.uniform(0.02, 0.98, count)[:, None]
        high, low = np.sqrt((1 - q) / q), -np.sqrt(q / (1 - q))  # mean 0, variance 1
        f = np.exp(log_f)
        for k in range(1, R + 1):
            kept = np.zeros(count)
            for outcome in itertools.product([True, False], repeat=R):
                up = np.array(outcome)
                mass = np.prod(np.where(up, q, 1 - q), axis=1)
                score = log_f + sigma[:, None] * np.where(up, high, low)
                top = np.argsort(score, axis=1)[:, R - k :]
                kept += mass * np.take_along_axis(f, top, 1).mean(1)
            best = np.sort(f, 1)[:, R - k :].mean(1)
            assert np.all(kept >= p_noise_many(sigma, R, k=k) * best * (1 - 1e-12))
            assert np.all(kept >= f.mean(1) * (1 - 1e-12))  # never worse than random
            checked += count
    assert checked >= P


def test_no_gaussian_noise_beats_the_bound_for_the_top_k():
    # 1 000 problems of 12 losses, 200 draws of noise each; tolerance: 4 standard errors
    rng = np.random.default_rng(1)
    R = 12
    sigma = np.exp(rng.uniform(-3, 1, P))
    f = np.exp(rng.standard_normal((P, R)) * rng.choice([0.1, 1, 3], (P, 1)))
    k = rng.integers(1, R + 1, P)
    rank = np.arange(R) >= (R - k)[:, None]
    best = (np.sort(f, 1) * rank).sum(1) / k
    score = np.log(f)[:, None] + sigma[:, None, None] * rng.standard_normal((P, 200, R))
    order = np.argsort(score, -1)
    kept = (np.take_along_axis(np.repeat(f[:, None], 200, 1), order, -1) * rank[:, None]).sum(-1)
    kept = kept / k[:, None] / best[:, None]
    error = kept.std(1, ddof=1) / np.sqrt(200)
    for method in ("any", "gaussian_lower"):
        assert np.all(
            kept.mean(1) + 4 * error >= p_noise_many(sigma, R, k=k, method=method) - 1e-12
        )


def test_normal_max_against_quadrature_and_hartley_and_david():
    for n in (1, 2, 3, 7, 100, 10**6):
        value = integrate.quad(
            lambda z, n=n: z * math.exp(math.log(n) - z * z / 2 + (n - 1) * special.log_ndtr(z)),
            -10, 12, epsabs=1e-11, limit=500, points=[0, np.sqrt(2 * np.log(max(n, 2)))],
        )[0] / math.sqrt(2 * math.pi)  # fmt: skip
        assert normal_max(n) == pytest.approx(value, abs=1e-9)
        assert normal_max(n) <= (n - 1) / np.sqrt(2 * n - 1) + 1e-15
        assert normal_max(n) <= np.sqrt(2 * np.log(n)) + 1e-15
    assert normal_max(5) == pytest.approx(1.1629644736, abs=1e-9)


def test_edges():
    for method in ("any", "gaussian_lower", "gaussian"):
        assert p_noise_many(0, 7, method=method) == 1
        assert p_noise_many(1e6, 7, method=method) == pytest.approx(1 / 7, abs=1e-5)
        p = p_noise_many(0.3, [2, 3, 10, 1000, 10**6], method=method)
        assert np.all(np.diff(p) < 0)
        s = p_noise_many([0, 0.1, 1, 10, 1e3], 6, method=method)
        assert np.all(np.diff(s) <= 0)
    assert p_noise_many(5.0, 8, k=8) == 1  # all are kept
    assert p_noise_many(5.0, 8, k=8, method="gaussian_lower") == 1
    assert p_noise_many(1e-12, 4, method="gaussian") == pytest.approx(1, abs=1e-11)
    # the pick is random, and 1/R is not lost beside 1
    for R in (2, 10**6, 10**12):
        assert p_noise_many(1e100, R, method="gaussian") * R == pytest.approx(1, rel=1e-9)
    wide = p_noise_many([0.01, 0.1, 1, 1e3], 1e12, method="gaussian")
    assert np.all(wide >= p_noise_many([0.01, 0.1, 1, 1e3], 1e12, method="gaussian_lower"))


@pytest.mark.parametrize("method", ["any", "gaussian_lower", "gaussian"])
@pytest.mark.parametrize("R", [3, 8, 100])
def test_sigma_max_is_where_p_times_rho_is_one(method, R):
    rho = np.array([1.01, 1.5, 2.9])
    at = sigma_max(rho, R=R, method=method)
    assert np.allclose(p_noise_many(at, R, method=method) * rho, 1, atol=1e-9)
    assert np.all(p_noise_many(0.99 * at, R, method=method) * rho > 1)
    assert sigma_max(1.0, R=R, method=method) == 0


def test_sigma_max_of_the_top_k_and_at_its_ends():
    at = sigma_max([1.2, 1.9], R=64, k=32)
    assert np.allclose(p_noise_many(at, 64, k=32) * [1.2, 1.9], 1)
    assert sigma_max(1.0, R=4, k=4) == 0
    assert sigma_max(2.0, R=2, method="any") == np.inf  # p never falls below 1/2
    assert sigma_max(2.0, R=2, method="gaussian") == np.inf
    assert sigma_max(3.0, R=3, method="gaussian") == np.inf
    assert sigma_max(1.5, method="any") > sigma_max(1.5, method="symmetric") > sigma_max(1.5)
    wide = sigma_max([1.1, 1.5], R=5)
    assert wide.shape == (2,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: p_noise_many(0.1, 1), "R = 1, but R whole"),
        (lambda: p_noise_many(0.1, 4, k=5), "k = 5, but k <= R"),
        (lambda: p_noise_many(0.1, 4, k=0), "k = 0"),
        (lambda: p_noise_many(-1, 4), "sigma = -1"),
        (lambda: p_noise_many(np.inf, 4), "sigma = inf"),
        (lambda: p_noise_many(0.1, 4, method="paper"), "method = 'paper', but"),
        (lambda: p_noise_many(0.1, 4, k=2, method="gaussian"), "method = 'gaussian' with k = 2"),
        (lambda: p_noise_many(0.1, 1e13, method="gaussian"), r"R = 1e\+13, but R <= 1e\+12"),
        (lambda: sigma_max(2.5), "rho_2 = 2.5, but 1 <= rho_2 <= 2"),
        (lambda: sigma_max(0.9, R=4), "rho = 0.9, but 1 <= rho <= 4"),
        (lambda: sigma_max(3, R=8, k=4), "rho = 3, but 1 <= rho <= 2"),
        (lambda: sigma_max(1.5, R=4, method="symmetric"), "proved for R = 2 and k = 1 only"),
        (lambda: sigma_max(1.5, R=4, method="none"), "method = 'none', but"),
        (lambda: sigma_max(1.5, R=[2, 4]), "each must be one number"),
        (lambda: normal_max(0), "n = 0"),
    ],
)
def test_out_of_domain_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
