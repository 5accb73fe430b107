"""Exact constants of the problems against closed forms and sampling."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sifting.theory import LeastSquares, LogisticRegression, rho_sphere

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
