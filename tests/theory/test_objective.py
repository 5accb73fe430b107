"""A user's own objective: checked when it is made, its constants against known ones."""

import numpy as np
import pytest

from sifting.theory import LeastSquares, OwnObjective, simulate


def sample(rng, shape):
    return (rng.uniform(-1, 1, (*shape, 2)),)


def loss(w, batch):
    return ((w - batch[0]) ** 2).sum(-1)


def gradient(w, batch):
    return 2 * (w - batch[0])


GOOD = {"start": [3.0, 0.0], "smoothness": 2.0, "sample": sample, "loss": loss,
        "gradient": gradient, "pool": 4000}  # fmt: skip


def test_constants_of_a_known_problem():
    c = OwnObjective(**GOOD).constants(R=2)
    assert c.F_star == pytest.approx(2 / 3, abs=0.03)  # E|x|² on the square
    assert pytest.approx(3, abs=0.05) == c.D0
    largest = loss(np.zeros(2), sample(np.random.default_rng(5), (200_000, 2))).max(1).mean()
    assert c.Delta == pytest.approx(largest, abs=0.03)
    # far away every loss is alike, so that the infimum is 1; a search gets close to it
    assert 1 <= c.rho_star < 1.1
    assert c.source == {"F_star": "Monte Carlo", "Delta": "Monte Carlo", "rho_star": "search",
                        "D0": "Monte Carlo"}  # fmt: skip


def test_what_is_known_is_used():
    problem = OwnObjective(
        **GOOD, minimiser=[0, 0], population_loss=lambda w: (w**2).sum(-1) + 2 / 3
    )
    c = problem.constants(R=2)
    assert c.F_star == 2 / 3
    assert c.D0 == 3
    assert (c.source["F_star"], c.source["D0"]) == ("exact", "exact")


def test_least_squares_given_as_functions_runs_the_same():
    known = LeastSquares(dim=3, distance=4, shift=3, minority=0.2)
    given = OwnObjective(
        start=known.start, smoothness=known.smoothness, sample=known.sample, loss=known.loss,
        gradient=known.gradient, minimiser=np.zeros(3), population_loss=known.objective, pool=4000,
    )  # fmt: skip
    a = simulate(known, K=50, R=3, runs=5, seed=1)
    b = simulate(given, K=50, R=3, runs=5, seed=1)
    for name in a.arms:
        assert np.array_equal(a.arms[name].loss_SC, b.arms[name].loss_SC)
    assert b.constants.Delta == pytest.approx(a.constants.Delta, rel=0.05)
    assert b.constants.rho_star >= a.constants.rho_star * 0.97


def test_the_pool_serves_as_the_objective():
    problem = OwnObjective(**GOOD)
    w = np.array([[[0.0, 0.0], [1.0, 2.0]]])
    direct = [[np.mean(loss(row, problem._batch)) for row in w[0]]]
    assert np.allclose(problem.objective(w), direct)
    s = simulate(problem, K=20, runs=3)
    assert np.all(s.arms["GSGD"].mean_C <= s.arms["GSGD"].path_bound_C)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"smoothness": 1.0}, "smoothness = 1, but gradients change by 2"),
        ({"smoothness": -1.0}, "smoothness = -1"),
        ({"gradient": lambda w, b: w - b[0]}, "gradient predicts a change"),
        ({"gradient": lambda w, b: (w - b[0])[..., :1]}, r"gradient returned shape \(16, 1\)"),
        ({"loss": lambda w, b: loss(w, b) - 1e3}, "the theorems need losses of at least 0"),
        ({"loss": lambda w, b: loss(w, b)[..., None]}, "loss returned shape"),
        (
            {
                "loss": lambda w, b: np.cos(w[..., 0]) + 1 + 0 * b[0][..., 0],
                "gradient": lambda w, b: np.stack([-np.sin(w[..., 0]), 0 * w[..., 0]], -1),
                "start": [0.0, 0.0],
            },
            "it must be convex",
        ),
        ({"sample": lambda rng, shape: (rng.uniform(size=(7, 2)),)}, "whose first axis is 16"),
        ({"start": [[1.0]]}, "start has shape"),
        ({"minimiser": [0.0]}, "minimiser has shape"),
        ({"pool": 1}, "pool = 1"),
    ],
)
def test_wrong_functions_are_refused_with_the_reason(changes, message):
    with pytest.raises(ValueError, match=message):
        OwnObjective(**(GOOD | changes))


def test_more_candidates_than_the_pool_holds():
    with pytest.raises(ValueError, match="R = 5000, but R <= pool = 4000"):
        OwnObjective(**GOOD).constants(R=5000)
