"""p_j in closed form against the integral, orthant probabilities and sampled losses."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, special, stats

from sifting.theory import DeepLinearNetwork, argmax_preservation, beta_j

NEAR_ONE = [1 - 10.0**-k for k in range(1, 17)]
GRID = np.unique([*np.linspace(-1, 1, 201), *NEAR_ONE, *(-b for b in NEAR_ONE)])


def test_closed_form_equals_the_integral_to_1e_9():
    closed = argmax_preservation(GRID)
    assert np.abs(closed - argmax_preservation(GRID, method="integral")).max() < 1e-9
    assert np.abs(closed - (0.5 + np.arcsin(GRID) / np.pi)).max() < 1e-8


@pytest.mark.parametrize("beta", [-0.999, -0.5, -0.1, 0.0, 0.3, 0.9, 0.999])
def test_integral_against_the_papers_own_by_adaptive_quadrature(beta):
    kappa = beta / (2 * np.sqrt(1 - beta**2))
    value, _ = integrate.quad(
        lambda y: np.exp(-(y**2) / 4) * special.erfc(kappa * y), 0, 60, epsabs=1e-13, limit=500
    )
    assert argmax_preservation(beta, method="integral") == pytest.approx(
        1 - value / (2 * np.sqrt(np.pi)), abs=1e-10
    )


@pytest.mark.parametrize("beta", [-0.7, 0.0, 0.6, 0.95])
def test_closed_form_against_an_orthant_probability(beta):
    # P(same sign) = 2 P(both below 0)
    orthant = stats.multivariate_normal([0, 0], [[1, beta], [beta, 1]]).cdf([0, 0])
    assert argmax_preservation(beta) == pytest.approx(2 * orthant, abs=1e-6)


def test_ends():
    for method in ("closed", "integral", "lower", "lower_sharp"):
        assert argmax_preservation(1.0, method=method) == 1.0
    assert argmax_preservation(0.0) == pytest.approx(0.5, abs=1e-15)
    assert argmax_preservation(-1.0) == 0.0
    assert argmax_preservation(-1.0, method="integral") == 0.0
    assert argmax_preservation(0.0, method="lower") == 0.0  # vacuous where the truth is a half
    assert argmax_preservation(0.0, method="lower_sharp") == 0.5


@settings(deadline=None)
@given(st.floats(-1, 1))
def test_lower_bounds_hold_for_either_sign_and_are_ordered(beta):
    exact = argmax_preservation(beta)
    paper = argmax_preservation(beta, method="lower")
    sharp = argmax_preservation(beta, method="lower_sharp")
    assert paper <= sharp + 1e-15
    assert sharp <= exact + 1e-15
    if beta >= 0:
        assert paper == pytest.approx(1 - np.sqrt((2 - 2 * beta**2) / (2 - beta**2)), abs=1e-7)
    assert exact == pytest.approx(1 - argmax_preservation(-beta), abs=1e-15)


def test_the_facts_behind_the_bounds():
    t = np.linspace(0, 10, 1001)
    assert np.allclose(special.erf(t), 2 * (stats.norm.cdf(np.sqrt(2) * t) - 0.5))  # with the √2
    assert not np.allclose(special.erf(t), 2 * (stats.norm.cdf(t) - 0.5), atol=0.1)
    assert np.all(special.erfc(t) <= np.exp(-(t**2)))
    assert np.all(np.exp(-(t**2)) <= 2 * np.exp(-(t**2) / 2))
    assert np.all(special.erf(t) <= np.sqrt(1 - np.exp(-4 * t**2 / np.pi)))  # Fact A.3
    area, _ = integrate.quad(lambda y: np.exp(-(y**2) / (2 * 1.7**2)), 0, np.inf)
    assert area == pytest.approx(np.sqrt(np.pi / 2) * 1.7)  # Fact A.5
    # the paper's bound fails for β < 0, which is why it is replaced there
    assert 1 - np.sqrt((2 - 2 * 0.9**2) / (2 - 0.9**2)) > argmax_preservation(-0.9)


def test_near_one_the_misses_are_of_order_root_tau():
    tau = 1e-10
    misses = {
        m: (1 - argmax_preservation(1 - tau, method=m)) / np.sqrt(tau)
        for m in ("closed", "lower_sharp", "lower")
    }
    assert misses["closed"] == pytest.approx(np.sqrt(2) / np.pi, rel=1e-4)
    assert misses["lower_sharp"] == pytest.approx(np.sqrt(2) / 2, rel=1e-4)
    assert misses["lower"] == pytest.approx(2, rel=1e-4)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(2, 8), st.integers(0, 1000))
def test_betas_are_the_definition_with_products_written_out(k, d, seed):
    network = DeepLinearNetwork.random(k, d, kind="gaussian", seed=seed)
    betas = network.betas()
    for j in range(1, k + 1):
        A = np.linalg.multi_dot([*network.weights[:j][::-1], np.eye(d)])
        B = np.linalg.multi_dot([np.eye(d), *network.weights[j:][::-1], np.eye(d)])
        u, v = A.T @ network.theta, A.T @ B.T @ network.theta
        by_hand = u @ v / np.linalg.norm(u) / np.linalg.norm(v)
        assert betas[j - 1] == pytest.approx(by_hand, abs=1e-9)
        assert beta_j(A, B, network.theta) == pytest.approx(by_hand, abs=1e-12)
    assert betas[-1] == 1.0


def plain_cross_entropy(network, layer, x, y):
    """The paper's ℓ_j written out, with sig(z) = 1/(1 + e^z)."""
    z = x.T
    for W in network.weights[:layer]:
        z = W @ z
    y_hat = 1 / (1 + np.exp(network.theta @ z))
    return -y * np.log(y_hat) - (1 - y) * np.log(1 - y_hat)


@pytest.mark.parametrize("kind", ["residual", "gaussian", "orthogonal"])
def test_sampled_preservation_agrees_with_theory(kind):
    # 40 000 pairs, seed 3; tolerance: 4 standard errors
    network = DeepLinearNetwork.random(5, 16, kind=kind, seed=7)
    p = network.preservation()
    error = np.sqrt(p * (1 - p) / 40_000)
    sampled = network.sample_preservation(40_000, seed=3)
    assert np.all(np.abs(sampled - p) <= 4 * error + 1e-12)
    # classes with different means satisfy the assumption as well
    moved = network.sample_preservation(40_000, mean=np.linspace(-1, 1, 16), seed=4)
    assert np.all(np.abs(moved - p) <= 4 * error + 1e-12)


def test_sampling_uses_the_papers_losses():
    network = DeepLinearNetwork.random(3, 4, scale=0.3, seed=1)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, (2, 5000))
    x = (2 * y - 1)[..., None] * rng.standard_normal((2, 5000, 4))
    for layer, p in zip((1, 2, 3), network.preservation(), strict=True):
        early = [plain_cross_entropy(network, layer, x[i], y[i]) for i in (0, 1)]
        last = [plain_cross_entropy(network, 3, x[i], y[i]) for i in (0, 1)]
        kept = np.mean((early[0] >= early[1]) == (last[0] >= last[1]))
        assert kept == pytest.approx(p, abs=4 * np.sqrt(p * (1 - p) / 5000) + 1e-12)


def test_a_hundred_layers_neither_overflow_nor_vanish():
    for scale in (1e-3, 1.0, 1e3):
        weights = [
            scale * np.asarray(W)
            for W in DeepLinearNetwork.random(100, 8, kind="gaussian", seed=0).weights
        ]
        betas = DeepLinearNetwork(weights, np.ones(8)).betas()
        assert np.all(np.isfinite(betas))
        assert np.all(np.abs(betas) <= 1)


def test_rotations_are_rotations_and_seeds_reproduce():
    network = DeepLinearNetwork.random(3, 5, kind="orthogonal", seed=2)
    for W in network.weights:
        assert np.allclose(W @ W.T, np.eye(5))
    again = DeepLinearNetwork.random(3, 5, kind="orthogonal", seed=2)
    assert np.array_equal(network.betas(), again.betas())


def test_the_first_layer_may_take_any_number_of_inputs():
    network = DeepLinearNetwork([np.ones((2, 5)) + np.eye(2, 5), np.eye(2)], [1.0, 2.0])
    assert np.array_equal(network.betas(), [pytest.approx(1), 1])
    assert network.sample_preservation(10).shape == (2,)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: argmax_preservation(1.1), ValueError, "beta = 1.1, but -1 <= beta <= 1"),
        (lambda: argmax_preservation(np.nan), ValueError, "beta = nan"),
        (lambda: argmax_preservation(0.1, method="x"), ValueError, "method = 'x', but"),
        (lambda: beta_j(np.eye(2), np.eye(3), [1, 1]), ValueError, r"B_j must be \(2, 2\)"),
        (lambda: beta_j(np.eye(2), np.eye(2), [0, 0]), ValueError, "β is undefined"),
        (lambda: beta_j(np.zeros((2, 2)), np.eye(2), [1, 1]), ValueError, "β is undefined"),
        (lambda: beta_j(np.eye(2) * np.nan, np.eye(2), [1, 1]), ValueError, r"A_j\[0, 0\] = nan"),
        (lambda: DeepLinearNetwork([], [1]), ValueError, "weights is empty"),
        (lambda: DeepLinearNetwork([np.eye(3)], [1, 1]), ValueError, r"weights\[0\] has shape"),
        (lambda: DeepLinearNetwork([np.eye(2)], np.eye(2)), ValueError, "theta has shape"),
        (lambda: DeepLinearNetwork.random(0, 4), ValueError, "layers = 0"),
        (lambda: DeepLinearNetwork.random(2, 4, kind="conv"), ValueError, "kind = 'conv'"),
        (lambda: DeepLinearNetwork.random(2, 4).sample_preservation(0), ValueError, "pairs = 0"),
    ],
)
def test_out_of_domain_input_is_named(call, error, message):
    with pytest.raises(error, match=message):
        call()
