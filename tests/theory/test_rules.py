"""The steps of SGD, GSGD and the kept-loss rule on shared candidates."""

from __future__ import annotations

import numpy as np
import pytest

from sifting.theory import LeastSquares, safe_ratio
from sifting.theory._rules import ARMS, RulePlan, _kept, _largest, _noisy, walk
from sifting.theory._runs import drawn_ahead

PROBLEM = LeastSquares(dim=3, distance=2.0, label_noise=0.3)


def by_hand(plan, eta, epsilon, K, seed):
    """The three rules, one run and one step at a time."""
    w = np.broadcast_to(PROBLEM.start, (3, plan.S, PROBLEM.dim)).copy()
    for batch, _ in drawn_ahead(
        PROBLEM, (plan.S, plan.B), K, seed=seed, block=32, noise=None, progress=None
    ):
        for s in range(plan.S):
            own = tuple(part[s] for part in batch)
            losses = [PROBLEM.loss(w[a, s], own) for a in range(3)]
            gradients = [PROBLEM.gradient(w[a, s], own) for a in range(3)]
            top = np.argsort(-losses[1])[: plan.b]
            count = round(float(safe_ratio(losses[2], epsilon)) * plan.B)
            kept = np.argsort(-losses[2])[:count]
            w[0, s] -= eta * gradients[0][: plan.b].mean(0)
            w[1, s] -= eta * gradients[1][top].mean(0)
            w[2, s] -= eta * gradients[2][kept].sum(0) / plan.B
    return w


def test_all_arms_walk_as_a_plain_loop_does():
    plan, K, eta, epsilon = RulePlan(S=2, B=6, b=2, sigma=0.0, per_loss=None), 12, 0.02, 0.3
    found = walk(
        PROBLEM, plan, np.full((3, K), eta), np.ones((3, K)), np.full(K, epsilon),
        np.array([float(K)]), 5, None,
    )  # fmt: skip
    wanted = by_hand(plan, eta, epsilon, K, 5)
    assert len(ARMS) == 3
    for arm in range(3):
        np.testing.assert_allclose(found.last_ACSD[arm, 0], wanted[arm], rtol=1e-10)
    computed = found.sums_AC5[:, 0, 0]
    assert computed[:2].tolist() == [plan.b * K] * 2
    assert 0 < computed[2] <= plan.B * K


def test_the_largest_are_those():
    scores = np.random.default_rng(0).random((5, 9))
    for b in (1, 4):
        found = np.sort(np.take_along_axis(scores, _largest(scores, b), 1), axis=1)
        assert np.array_equal(found, np.sort(scores, axis=1)[:, -b:])


def test_the_kept_carry_nearly_all_of_the_score_and_no_fewer_would():
    scores = np.random.default_rng(0).exponential(size=(50, 8))
    kept = _kept(scores, 0.2)
    assert np.array_equal(kept.mean(1), safe_ratio(scores, 0.2))
    share = (scores * kept).sum(1) / scores.sum(1)
    assert np.all(share >= 0.8 - 1e-12)
    least = np.where(kept, scores, np.inf).min(1)
    assert np.all((scores * kept).sum(1) - least < 0.8 * scores.sum(1))
    assert _kept(np.zeros((1, 3)), 0.2).tolist() == [[True, False, False]]


def test_noise_never_overflows_and_keeps_the_order_without_any():
    losses = np.array([[[1e-300, 1.0, 1e300]]])
    found = _noisy(losses, np.full((1, 3), 500.0))
    assert np.isfinite(found).all()
    assert np.array_equal(np.argsort(found, -1), np.argsort(losses, -1))
    assert _noisy(np.zeros((1, 1, 2)), np.zeros((1, 2))).tolist() == [[[0.0, 0.0]]]
    assert _noisy(np.array([[[2.0, 1.0]]]), np.zeros((1, 2)))[0, 0] == pytest.approx([1.0, 0.5])
