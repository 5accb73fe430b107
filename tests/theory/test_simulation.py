"""The simulator against a plain loop, and the bounds never below what it measures."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sifting.theory import (
    LeastSquares,
    LogisticRegression,
    p_noise_many,
    rho_2_approx_lower,
    simulate,
)
from sifting.theory.simulation import NOISE_LAWS

PROBLEM = LeastSquares(dim=4, distance=5, shift=4, minority=0.2)


def plain_loop(problem, K, R, eta, sigma, runs, seed):
    """The paper's algorithm, one run and one step at a time, from the same draws."""
    rng = np.random.default_rng(seed)
    drawn, noise = [], []
    for k in range(0, K, 64):
        block = min(64, K - k)
        drawn.append(problem.sample(rng, (block, runs, R)))
        noise.append(rng.standard_normal((block, runs, R)) if sigma > 0 else None)
    out = np.empty((3, runs))
    for arm in range(3):
        for run in range(runs):
            w, total = problem.start.copy(), np.zeros(problem.dim)
            for k in range(K):
                batch = [part[k % 64, run] for part in drawn[k // 64]]
                total += w
                f = np.array([problem.loss(w, tuple(p[r] for p in batch)) for r in range(R)])
                zeta = noise[k // 64][k % 64, run] if sigma > 0 else np.zeros(R)
                approximate = f * np.exp(0.7 + sigma * zeta)
                r = (0, int(np.argmax(f)), int(np.argmax(approximate)))[arm]
                w = w - eta * problem.gradient(w, tuple(p[r] for p in batch))
            out[arm, run] = problem.objective(total / K)
    return out


@pytest.mark.parametrize("problem", [PROBLEM, LogisticRegression(dim=3)], ids=["ls", "logistic"])
def test_agrees_with_a_plain_loop(problem):
    K, eta = 150, 0.5 / problem.smoothness
    s = simulate(problem, K=K, R=3, eta=eta, sigma=0.4, runs=3, seed=5, checkpoints=[K])
    plain = plain_loop(problem, K, 3, eta, 0.4, 3, 5)
    for arm, expected in zip(s.arms.values(), plain, strict=True):
        assert np.allclose(arm.loss_SC[:, 0], expected, rtol=1e-10)


def test_same_seed_same_numbers_and_mu_cancels():
    a, b = (simulate(PROBLEM, K=70, runs=4, sigma=0.5, seed=3, mu=mu) for mu in (0.0, -7.0))
    c = simulate(PROBLEM, K=70, runs=4, sigma=0.5, seed=4)
    for name in ("SGD", "GSGD", "GSGD, noisy"):
        assert np.array_equal(a.arms[name].loss_SC, b.arms[name].loss_SC)
        assert not np.array_equal(a.arms[name].loss_SC, c.arms[name].loss_SC)


def test_without_noise_there_are_two_arms_and_tiny_noise_changes_nothing():
    assert list(simulate(PROBLEM, K=5, runs=2).arms) == ["SGD", "GSGD"]
    s = simulate(PROBLEM, K=60, runs=4, sigma=1e-12)
    assert np.array_equal(s.arms["GSGD"].loss_SC, s.arms["GSGD, noisy"].loss_SC)


def test_after_one_step_the_mean_iterate_is_the_start():
    s = simulate(PROBLEM, K=1, runs=3)
    for arm in s.arms.values():
        assert np.allclose(arm.loss_SC, PROBLEM.objective(PROBLEM.start))
        assert np.all(arm.mean_C <= arm.bound_C)


@pytest.fixture(scope="module")
def picture():
    # 100 runs of 3000 steps, seed 0
    return simulate(LeastSquares(dim=10, distance=20), K=3000, R=8, runs=100, checkpoints=40)


def test_gsgd_is_ahead_early_then_floors_and_sgd_overtakes(picture):
    gsgd, sgd = picture.arms["GSGD"], picture.arms["SGD"]
    c, K = picture.constants, picture.steps_C
    early = int(np.argmin(np.abs(K - 30)))
    assert gsgd.mean_C[early] + 5 * gsgd.error_C[early] < sgd.mean_C[early]
    assert sgd.mean_C[-1] + 5 * sgd.error_C[-1] < gsgd.mean_C[-1]
    # the floor: a constant factor above F*, that the second half of the run does not lower
    middle = int(np.argmin(np.abs(K - 1500)))
    assert 1.05 * c.F_star < gsgd.mean_C[-1] < c.Delta / c.rho_star
    assert gsgd.mean_C[-1] > 0.97 * gsgd.mean_C[middle]
    assert sgd.mean_C[-1] < 1.02 * c.F_star
    assert 30 < picture.crossover_measured() < 1500
    assert picture.crossover_bound() > picture.crossover_measured()


def test_bounds_lie_above_the_measured_curve_at_every_step(picture):
    for arm in picture.arms.values():
        assert np.all(arm.mean_C + 4 * arm.error_C <= arm.bound_C)
        assert np.all(arm.mean_C + 4 * arm.error_C <= arm.path_bound_C)


def test_the_ratio_along_the_path_is_what_the_problem_says(picture):
    # at the start every run is at w_0, where F̂/F is known; 1600 losses, within 15 %
    problem = LeastSquares(dim=10, distance=20)
    exact = problem.largest_of(8, problem.start) / problem.objective(problem.start)
    assert picture.arms["GSGD"].ratio_C[0] == pytest.approx(exact, rel=0.15)
    assert np.allclose(picture.arms["SGD"].ratio_C[-1], 1, rtol=0.05)


@settings(max_examples=25, deadline=None)
@given(
    dim=st.integers(2, 8),
    distance=st.floats(0, 30),
    minority=st.floats(0, 0.5),
    shift=st.floats(0, 20),
    label_noise=st.sampled_from([0.0, 1.0]),
    condition=st.floats(1, 20),
    R=st.integers(2, 6),
    fraction=st.floats(0.05, 0.95),
    sigma=st.sampled_from([0.0, 0.1, 1.0]),
    noise=st.sampled_from(sorted(NOISE_LAWS)),
    seed=st.integers(0, 10**6),
)
def test_no_random_least_squares_problem_is_above_its_bounds(
    dim, distance, minority, shift, label_noise, condition, R, fraction, sigma, noise, seed
):
    # 32 runs of 128 steps; tolerance: 4 standard errors of the measured mean
    problem = LeastSquares(dim, distance, minority, shift, label_noise, condition)
    s = simulate(
        problem, K=128, R=R, eta=fraction / problem.smoothness, sigma=sigma, noise=noise,
        runs=32, checkpoints=20, seed=seed,
    )  # fmt: skip
    for arm in s.arms.values():
        assert np.all(arm.mean_C - 4 * arm.error_C <= arm.bound_C * (1 + 1e-12))


@settings(max_examples=10, deadline=None)
@given(
    st.integers(2, 8),
    st.floats(0.5, 5),
    st.integers(2, 6),
    st.floats(0.1, 0.95),
    st.integers(0, 10**6),
)
def test_no_random_logistic_problem_is_above_its_bounds(dim, signal, R, fraction, seed):
    # 32 runs of 128 steps; tolerance: 4 standard errors of the measured mean
    problem = LogisticRegression(dim, signal)
    s = simulate(
        problem, K=128, R=R, eta=fraction / problem.smoothness, sigma=0.3, runs=32, seed=seed
    )
    for arm in s.arms.values():
        assert np.all(arm.mean_C - 4 * arm.error_C <= arm.bound_C)
        assert np.all(arm.mean_C - 4 * arm.error_C <= arm.path_bound_C)


def test_the_noisy_arm_keeps_at_least_what_the_noise_bound_promises():
    # 20 000 picks along the path, seed 0; tolerance 2 %
    s = simulate(LeastSquares(dim=20), K=100, R=2, sigma=0.3, runs=200, seed=0)
    promised = s.constants.rho_star * p_noise_many(0.3, 2)
    assert promised > rho_2_approx_lower(s.constants.rho_star, 0.3, method="symmetric")
    assert s.rho["GSGD, noisy"] == pytest.approx(promised)
    assert s.arms["GSGD, noisy"].ratio_C[-1] >= promised * 0.98
    assert s.arms["GSGD, noisy"].ratio_C[-1] < s.arms["GSGD"].ratio_C[-1]


def test_crossings_where_there_are_none():
    perfect = simulate(LeastSquares(dim=3, shift=0, minority=0), K=40, R=4, runs=10)
    assert perfect.constants.F_star == 0
    assert perfect.crossover_bound() == np.inf
    assert perfect.crossover_measured() == np.inf
    at_minimum = simulate(LeastSquares(dim=3, distance=0), K=40, R=4, runs=50)
    assert at_minimum.crossover_bound() == 0


def test_progress_checkpoints_and_one_run():
    seen = []
    s = simulate(
        PROBLEM, K=130, runs=1, checkpoints=[1, 5, 130], progress=lambda *a: seen.append(a)
    )
    assert seen == [(0, 130), (64, 130), (128, 130), (130, 130)]
    assert s.steps_C.tolist() == [1, 5, 130]
    assert np.isnan(s.arms["SGD"].error_C).all()
    assert simulate(PROBLEM, K=9, runs=1, checkpoints=1).steps_C.tolist() == [9]


@pytest.mark.parametrize("name", sorted(NOISE_LAWS))
def test_noise_laws_have_mean_zero_and_variance_one(name):
    # 200 000 draws, seed 0; the skewed law has a fourth moment of 9
    draws = NOISE_LAWS[name](np.random.default_rng(0), (200_000,))
    assert draws.mean() == pytest.approx(0, abs=4 / np.sqrt(200_000))
    assert draws.var() == pytest.approx(1, abs=4 * 3 / np.sqrt(200_000))


def test_a_noise_law_of_ones_own():
    s = simulate(PROBLEM, K=20, runs=2, sigma=1, noise=lambda rng, shape: np.zeros(shape))
    assert np.array_equal(s.arms["GSGD"].loss_SC, s.arms["GSGD, noisy"].loss_SC)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"K": 0}, "K = 0"),
        ({"R": 1}, "R = 1"),
        ({"runs": 0}, "runs = 0"),
        ({"eta": 0.25}, "eta = 0.25 with L = 4, but eta < 1/L"),
        ({"eta": -1.0}, "eta = -1"),
        ({"sigma": -1.0}, "sigma = -1"),
        ({"mu": np.inf}, "mu = inf"),
        ({"checkpoints": [5, 999]}, r"checkpoints\[1\] = 999, but checkpoints <= K = 10"),
        ({"checkpoints": 0}, "checkpoints = 0"),
        ({"noise": "pink"}, "noise = 'pink', but"),
    ],
)
def test_out_of_domain_input_is_named(changes, message):
    with pytest.raises(ValueError, match=message):
        simulate(PROBLEM, **({"K": 10, "runs": 2} | changes))
