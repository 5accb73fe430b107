"""Exact constants of the problems against closed forms and sampling."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sifting.theory import LeastSquares, LogisticRegression, rho_gaussian, rho_sphere
from sifting.theory._order import mean_of_largest, mean_of_largest_square, panels, top_weights
from sifting.theory.sphere import largest_residual_square

LEAST_SQUARES = [
    LeastSquares(),
    LeastSquares(dim=3, distance=5, minority=0.3, shift=2, label_noise=0.5, condition=5),
    LeastSquares(dim=2, distance=1, minority=0.5, shift=1, label_noise=0.02),
    LeastSquares(dim=1, distance=1, minority=0.2, shift=3, label_noise=0.5),
    LeastSquares(dim=6, distance=1, minority=0.0, shift=0, label_noise=1.0),
    LeastSquares(dim=4, distance=3, shift=2, label_noise=0.5, condition=3, active=0.2),
]
LOGISTIC = [LogisticRegression(), LogisticRegression(dim=2, signal=1)]
IDS = [f"{type(p).__name__}-{p.dim}" for p in LEAST_SQUARES + LOGISTIC]


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


@pytest.mark.parametrize("R", [2, 5, 100])
def test_rho_on_spheres_against_closed_forms(R):
    assert rho_sphere(R, 1) == 1
    assert rho_sphere(R, 3) == pytest.approx(3 * R / (R + 2), abs=1e-10)  # U is uniform
    assert rho_sphere(R, 10**7) == pytest.approx(rho_gaussian(R, 0, 1), rel=1e-5)
    assert np.all(np.diff(rho_sphere(R, [1, 2, 3, 5, 10, 100])) > 0)


def test_residuals_with_label_noise_meet_both_limits():
    R, d = 4, 5
    only_noise = largest_residual_square([0.0], [1.0], 2.0, d, R)
    assert only_noise == pytest.approx(4 * rho_gaussian(R, 0, 1), rel=1e-9)
    none = largest_residual_square([1.0], [1.0], 0.0, d, R)
    little = [largest_residual_square([1.0], [1.0], s, d, R) for s in (1e-4, 4e-3, 1e-2)]
    assert little[0] == pytest.approx(none, rel=1e-6)
    assert little[1] == pytest.approx(none, rel=1e-3)
    assert none < little[0] < little[1] < little[2]
    assert largest_residual_square([0.0, 0.0], [0.5, 0.5], 0.0, d, R) == 0


@pytest.mark.parametrize("problem", LEAST_SQUARES + LOGISTIC, ids=IDS)
@pytest.mark.parametrize("R", [2, 8])
def test_constants_against_sampling(problem, R):
    # 100 000 draws, seed 1; tolerance: 4.5 standard errors
    c = problem.constants(R)
    w_star = np.zeros(problem.dim)
    if isinstance(problem, LogisticRegression):
        w_star[0] = problem.signal
    batch = problem.sample(np.random.default_rng(1), (100_000, R))
    losses = problem.loss(w_star, batch)
    for exact, sampled in ((c.F_star, losses.mean(1)), (c.Delta, losses.max(1))):
        error = sampled.std() / np.sqrt(len(sampled))
        assert exact == pytest.approx(sampled.mean(), abs=4.5 * error + 1e-9)
    assert pytest.approx(np.linalg.norm(problem.start - w_star)) == c.D0
    assert c.Delta >= c.rho_star * c.F_star * (1 - 1e-9)  # the paper's inequality
    assert set(c.source.values()) == {"exact"}
    # w* is stationary: the mean gradient vanishes within sampling error
    gradient = problem.gradient(w_star, tuple(part[:, 0] for part in batch))
    error = gradient.std(0) / np.sqrt(len(gradient))
    assert np.all(np.abs(gradient.mean(0)) <= 4.5 * error + 1e-12)


@pytest.mark.parametrize("problem", LEAST_SQUARES + LOGISTIC, ids=IDS)
def test_gradient_smoothness_and_objective(problem):
    rng = np.random.default_rng(2)
    batch = problem.sample(rng, (500,))
    w, v = rng.standard_normal((2, 500, problem.dim))
    direction = rng.standard_normal((500, problem.dim)) * 1e-6
    rise = problem.loss(w + direction, batch) - problem.loss(w - direction, batch)
    said = 2 * (problem.gradient(w, batch) * direction).sum(-1)
    assert np.allclose(rise, said, rtol=1e-4, atol=1e-8)
    change = np.linalg.norm(problem.gradient(w, batch) - problem.gradient(v, batch), axis=-1)
    assert np.all(change <= problem.smoothness * np.linalg.norm(w - v, axis=-1) * (1 + 1e-9))
    f, slope = problem.loss(w, batch), problem.gradient(w, batch)
    assert np.all(f >= 0)
    assert np.all((slope**2).sum(-1) <= 2 * problem.smoothness * f * (1 + 1e-9))  # Fact A.1
    # F against 200 000 samples, seed 2; tolerance: 4.5 standard errors
    at = problem.start + 0.3
    losses = problem.loss(at, problem.sample(rng, (200_000,)))
    error = losses.std() / np.sqrt(len(losses))
    assert problem.objective(at[None])[0] == pytest.approx(losses.mean(), abs=4.5 * error + 1e-9)


@settings(max_examples=30, deadline=None)
@given(
    st.integers(2, 6),
    st.floats(0, 0.5),
    st.floats(0, 5),
    st.sampled_from([0.0, 0.5, 2.0]),
    st.integers(2, 6),
    st.integers(0, 1000),
)
def test_no_w_has_a_ratio_below_rho_star(dim, minority, shift, label_noise, R, seed):
    problem = LeastSquares(
        dim=dim, minority=minority, shift=shift, label_noise=label_noise, condition=3
    )
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(dim) * 10.0 ** rng.uniform(-2, 2)
    ratio = problem.largest_of(R, w) / problem.objective(w)
    assert ratio >= problem.constants(R).rho_star * (1 - 1e-6)


def test_rho_star_is_approached_far_from_the_minimiser():
    problem = LeastSquares(dim=8, shift=5, label_noise=1)
    far = np.full(8, 1e4)
    ratio = problem.largest_of(4, far) / problem.objective(far)
    assert ratio == pytest.approx(problem.constants(4).rho_star, rel=1e-4)


def test_logistic_losses_are_equal_at_zero_so_that_rho_star_is_one():
    problem = LogisticRegression(dim=5)
    losses = problem.loss(np.zeros(5), problem.sample(np.random.default_rng(0), (100,)))
    assert np.all(losses == np.log(2))
    assert problem.constants(4).rho_star == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: LeastSquares(dim=0), "dim = 0"),
        (lambda: LeastSquares(minority=0.7), "minority = 0.7, but 0 <= minority <= 1/2"),
        (lambda: LeastSquares(shift=-1), "shift = -1"),
        (lambda: LeastSquares(distance=np.nan), "distance = nan"),
        (lambda: LeastSquares(label_noise=-1), "label_noise = -1"),
        (lambda: LeastSquares(condition=0.5), "condition = 0.5"),
        (lambda: LogisticRegression(dim=1), "dim = 1"),
        (lambda: LogisticRegression(signal=0), "signal = 0"),
        (lambda: LeastSquares().constants(1), "R = 1"),
        (lambda: LogisticRegression().constants(2.5), "R = 2.5"),
        (lambda: rho_sphere(1, 3), "R = 1"),
        (lambda: rho_sphere(2, 0), "dim = 0"),
    ],
)
def test_out_of_domain_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
