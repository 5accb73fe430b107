"""What both simulators share: checkpoints, samples drawn ahead, and a measured course."""

from __future__ import annotations

import numpy as np
import pytest

from sifting.theory import LeastSquares
from sifting.theory._runs import Measured, checkpoint_steps, drawn_ahead, refuse_divergence


def test_a_course_is_the_mean_over_runs_with_its_error():
    losses = np.array([[1.0, 4.0], [3.0, 6.0], [5.0, 8.0]])
    course = Measured("SGD", losses)
    assert course.mean_C.tolist() == [3.0, 6.0]
    assert course.error_C == pytest.approx(np.full(2, 2 / np.sqrt(3)))
    low, high = course.band(0.0, 1.0)
    assert (low.tolist(), high.tolist()) == ([1.0, 4.0], [5.0, 8.0])
    assert np.isnan(Measured("SGD", losses[:1]).error_C).all()


def test_checkpoints_are_spread_evenly_in_the_logarithm_or_as_given():
    assert checkpoint_steps(3, 100).tolist() == [1, 10, 100]
    assert checkpoint_steps(1, 100).tolist() == [100]
    assert checkpoint_steps([5, 2, 5], 100).tolist() == [2, 5]
    assert len(checkpoint_steps(50, 10)) == 10, "no step twice"
    with pytest.raises(ValueError, match=r"checkpoints <= K = 100 must hold: run for longer"):
        checkpoint_steps([101], 100)


def drawn(block, K=7, seed=0, noise=None):
    seen = []
    items = drawn_ahead(
        LeastSquares(dim=2), (3, 4), K, seed=seed, block=block, noise=noise,
        progress=lambda done, of: seen.append((done, of)),
    )  # fmt: skip
    return [(tuple(part.copy() for part in batch), zeta) for batch, zeta in items], seen


def test_each_step_has_its_samples_and_the_same_seed_the_same():
    steps, seen = drawn(block=3)
    assert len(steps) == 7
    assert all(part.shape[:2] == (3, 4) for batch, _ in steps for part in batch)
    assert seen == [(0, 7), (3, 7), (6, 7), (7, 7)]
    again, _ = drawn(block=3)
    for (one, _), (other, _) in zip(steps, again, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    assert all(zeta is None for _, zeta in steps)


def test_noise_has_the_shape_of_the_samples():
    steps, _ = drawn(block=4, noise=lambda rng, shape: rng.standard_normal(shape))
    assert all(zeta is not None and zeta.shape == (3, 4) for _, zeta in steps)


def test_runs_that_diverged_are_refused():
    refuse_divergence(1.0, 0.1, np.ones(3))
    with pytest.raises(FloatingPointError, match=r"diverged with eta = 0.1: is L = 1 really"):
        refuse_divergence(1.0, 0.1, np.ones(3), np.array([np.nan]))
