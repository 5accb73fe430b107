"""Bounds of SGD whose kept carry nearly all of the loss, against runs and in exact expectation."""

from __future__ import annotations

import numpy as np
import pytest

from sifting.theory import (
    decaying_bound,
    gsgd_bound,
    kept_loss_bound,
    kept_loss_floor,
    kept_slack,
    kept_smoothness,
    safe_ratio,
    sgd_bound,
)
from tests.helpers.finite_sums import P, Problems


@pytest.fixture(scope="module")
def problems():
    return Problems(0)


def simulate(p, eta, epsilon, B, K, S, seed, per_loss=None, weights=None):
    """Plain runs of the rule: F at the (weighted) mean iterate after 1, 2, 4, …, K steps."""
    rng = np.random.default_rng(seed)
    n = p.x.shape[1]
    w = np.repeat(p.w0[:, None], S, 1)
    total, mass, out = np.zeros_like(w), 0.0, {}
    rows = np.arange(P)[:, None, None]
    for k in range(K):
        weight = 1.0 if weights is None else weights[:, k][:, None, None]
        total, mass = total + weight * w, mass + weight
        index = rng.integers(n, size=(P, S, B))
        x, y = p.x[rows, index], p.y[rows, index]
        error = np.einsum("psbd,psd->psb", x, w) - y
        losses = error**2 / 2
        limit = epsilon[:, k] if epsilon.ndim == 2 else epsilon
        limit = np.broadcast_to(limit[:, None], (P, S))
        if per_loss is not None:
            limit = np.minimum(limit, per_loss[:, None] * p.F(w))
        ratio = safe_ratio(losses, limit)
        edge = np.take_along_axis(
            np.sort(losses, -1), (B - np.rint(ratio * B)).astype(int)[..., None], -1
        )
        step = np.einsum("psb,psbd->psd", error * (losses >= edge), x) / B
        eta_k = eta[:, k] if eta.ndim == 2 else eta
        w = w - eta_k[:, None, None] * step
        if (k + 1) & k == 0:
            out[k + 1] = p.F(total / mass)
    return out


def assert_below(out, bound):
    for K, loss in out.items():
        mean, error = loss.mean(1), loss.std(1, ddof=1) / np.sqrt(loss.shape[1])
        above = mean - 4 * error - bound(K) * (1 + 1e-9) - 1e-12
        assert np.all(above <= 0), (K, int(np.argmax(above)), above.max())


def test_no_random_problem_is_above_the_bound_of_constant_steps(problems):
    # 1 000 problems × 12 runs × 64 steps; tolerance: 4 standard errors of the mean
    p = problems
    eta = p.fraction / p.L
    out = simulate(p, eta, p.epsilon, 4, 64, 12, 1)
    assert_below(out, lambda K: kept_loss_bound(K, eta, p.L, p.D0, p.F_star, p.epsilon))
    args = (p.L, p.D0, p.F_star, p.epsilon)
    assert_below(out, lambda K: kept_loss_bound(K, eta, *args, B=4, L_F=p.L_F))


def test_no_random_problem_is_above_the_bound_of_long_steps(problems):
    # steps of up to (1 - ε)/Λ, which for some problems is beyond 1/L
    p = problems
    B = 8
    longest = (1 - p.epsilon) / kept_smoothness(p.L, p.epsilon, B=B, L_F=p.L_F)
    eta = p.fraction * longest
    assert (eta * p.L > 1).sum() > 100
    out = simulate(p, eta, p.epsilon, B, 32, 12, 2)
    args = (p.L, p.D0, p.F_star, p.epsilon)
    assert_below(out, lambda K: kept_loss_bound(K, eta, *args, B=B, L_F=p.L_F))


def test_no_random_problem_is_above_the_bound_of_decaying_steps(problems):
    p = problems
    k = np.arange(1, 65)
    eta = (p.fraction / p.L)[:, None] / np.sqrt(k)
    epsilon = p.epsilon[:, None] / np.sqrt(k)
    slack = np.stack([kept_slack(e, L, g) for e, L, g in zip(eta, p.L, epsilon, strict=True)])
    out = simulate(p, eta, epsilon, 4, 64, 12, 3, weights=eta * slack)
    bounds = np.stack([
        decaying_bound(e, L, D0, F, epsilon=g)
        for e, L, D0, F, g in zip(eta, p.L, p.D0, p.F_star, epsilon, strict=True)
    ])  # fmt: skip
    assert_below(out, lambda K: bounds[:, K - 1])


def test_no_random_problem_is_above_the_bound_of_an_epsilon_that_shrinks_with_the_loss(problems):
    p = problems
    eta = p.fraction / p.L
    per_loss = np.random.default_rng(4).choice([0.0, 0.1, 1.0], P) / (p.F_star + 0.1)
    out = simulate(p, eta, p.epsilon, 4, 64, 12, 4, per_loss=per_loss)
    args = (p.L, p.D0, p.F_star, p.epsilon)
    assert_below(out, lambda K: kept_loss_bound(K, eta, *args, per_loss=per_loss))


def test_the_floor_of_a_fixed_epsilon_is_real():
    # a share q of the samples at 1, the rest at 0: where the expected step vanishes, F is
    # F*(1 + x²/(q(1 - q))) with x(q + x) = ε(q(1 - q) + x²), which is F*/(1 - ε) as q -> 0
    eps = 0.05
    shares = eps / np.array([1, 10, 100, 1e8])
    excess = []
    for q in shares:
        x = np.roots([1 - eps, q, -eps * q * (1 - q)]).max()
        w = q + x
        few, many = q * (1 - w) ** 2 / 2, (1 - q) * w**2 / 2
        drop = eps * (few + many) / many  # of the many, whose losses are equal
        assert 0 < drop < 1
        pull = q * (w - 1) + (1 - q) * (1 - drop) * w
        assert pull == pytest.approx(0, abs=1e-9 * w)
        excess.append((few + many) / (q * (1 - q) / 2) - 1)
        assert few + many <= kept_loss_floor(q * (1 - q) / 2, eps)
    assert np.all(np.diff(excess) > 0)
    assert 1 + excess[-1] == pytest.approx(kept_loss_floor(1, eps), abs=1e-5)  # attained
    assert excess[0] == pytest.approx(0.38 * eps, rel=0.02)


def test_the_floor_is_reached_by_runs_and_vanishes_with_epsilon():
    # the same two kinds of samples, batches of 200, ε = 10 q: the mean of the last iterates
    q, B = 0.02, 400
    rng = np.random.default_rng(0)
    F_star = q * (1 - q) / 2
    ends = {}
    for eps in (0.2, 0.0):
        w, tail = np.full(50, 0.3), []
        for k in range(400):
            one = rng.random((50, B)) < q
            losses = (w[:, None] - one) ** 2 / 2
            count = np.rint(safe_ratio(losses, eps) * B).astype(int)
            rank = np.argsort(np.argsort(-losses, axis=1), axis=1)
            w = w - 0.1 * ((w[:, None] - one) * (rank < count[:, None])).mean(1)
            if k >= 200:
                tail.append(w)
        ends[eps] = ((q * (np.mean(tail) - 1) ** 2 + (1 - q) * np.mean(tail) ** 2) / 2) / F_star
    assert 1.05 < ends[0.2] < 1 / (1 - 0.2)
    assert ends[0.0] == pytest.approx(1, abs=0.01)


def test_without_dropping_it_is_sgd_and_floors_are_in_order():
    args = {"eta": 0.01, "L": 50, "D0": 2, "F_star": 0.1}
    assert kept_loss_bound(1000, epsilon=0, **args) == sgd_bound(1000, **args)
    steps = np.full(1000, 0.01)
    assert decaying_bound(steps, 50, 2, 0.1)[-1] == pytest.approx(sgd_bound(1000, **args))
    gsgd = decaying_bound(steps, 50, 2, 0.3, rho=1.5)[-1]
    assert gsgd == pytest.approx(gsgd_bound(1000, 0.01, 50, 2, 1.5, 0.3))
    kept = decaying_bound(steps, 50, 2, 0.1, epsilon=0.05)[-1]
    assert kept == pytest.approx(kept_loss_bound(1000, epsilon=0.05, **args))
    limit = kept_loss_bound(10**15, epsilon=0.05, **args)
    assert limit == pytest.approx(kept_loss_floor(0.1, 0.05, eta=0.01, L=50))
    assert kept_loss_floor(0.1, 0.05) == pytest.approx(0.1 / 0.95)
    assert kept_loss_floor(0.1, 0.05, per_loss=0) == pytest.approx(0.1)
    assert kept_loss_floor(0.1, 0.05, per_loss=100) == pytest.approx(0.1 / 0.95)  # ε alone
    far = kept_loss_bound(10**15, epsilon=0.05, per_loss=0.1, **args)
    assert far == pytest.approx(kept_loss_floor(0.1, 0.05, eta=0.01, L=50, per_loss=0.1))


def test_decaying_steps_and_epsilon_leave_no_floor_and_gsgd_keeps_its_own():
    k = np.arange(1, 1_000_001)
    eta, eps = 0.01 / np.sqrt(k), 0.5 / np.sqrt(k)
    assert decaying_bound(eta, 50, 2, 0.1, epsilon=eps)[-1] < 0.21
    assert decaying_bound(eta, 50, 2, 0.1, epsilon=0.5)[-1] > 0.2
    assert decaying_bound(eta, 50, 2, 0.3, rho=1.5)[-1] > 0.2  # Δ/ρ, for any number of steps
    falling = decaying_bound(eta, 50, 2, 0.1, epsilon=eps)[[10**3, 10**4, 10**5, -1]] - 0.1
    assert np.all(falling[1:] < 0.5 * falling[:-1])
