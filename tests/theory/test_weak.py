"""Without convexity: each step of the proofs on a thousand random problems, then the bounds.

Legend: P problems, n samples of each, T tuples of R draws, S runs.
"""

import itertools

import numpy as np
import pytest

from sifting.theory import (
    decaying_bound,
    gsgd_bound,
    p_noise_many,
    pl_bound,
    pl_step_size,
    quasar_bound,
    quasar_distance_bound,
    weakly_convex_bound,
)

P, n = 1000, 4


class Neurons:
    """P problems of one parameter, (ψ(xw) - ψ(xw*))²/2: phase retrieval, leaky tanh, squares.

    `y` may be moved off the fit, so that there is no interpolation.
    """

    def __init__(self, kind, seed, misfit=False):
        rng = np.random.default_rng(seed)
        self.kind, self.rng = kind, rng
        self.x = rng.standard_normal((P, n)) * rng.choice([0.3, 1, 2], (P, 1))
        self.x[:20] = self.x[:20, :1]  # all samples alike
        self.truth = rng.standard_normal(P) * rng.choice([0, 1, 3], P)
        self.slope = rng.uniform(0.2, 1, P)
        self.width = rng.uniform(0.3, 2, P)
        self.w0 = self.truth + rng.standard_normal(P) * rng.choice([0, 0.5, 5], P)
        self.y = self.psi(self.x * self.truth[:, None])[0]
        if misfit:
            self.y = np.maximum(self.y + rng.standard_normal((P, n)), self.width[:, None])
        top = np.abs(self.y).max(1)
        curve = {
            "phase": np.maximum(1, top / self.width - 1),
            "leaky": 1 + 4 / (3 * np.sqrt(3)) * (1 - self.slope) * top,
            "squares": np.ones(P),
        }[kind]
        self.L = (self.x**2).max(1) * curve

    def _like(self, value, z):
        return value.reshape(P, *[1] * (z.ndim - 1))

    def psi(self, z):
        if self.kind == "phase":
            value = np.hypot(z, self._like(self.width, z))
            return value, z / value
        if self.kind == "squares":
            return z, np.ones_like(z)
        a, bent = self._like(self.slope, z), np.tanh(z)
        return a * z + (1 - a) * bent, a + (1 - a) * (1 - bent**2)

    def at(self, w):
        """Losses and slopes of all samples at w of shape (P, ...): (P, ..., n)."""
        x = self.x.reshape(P, *[1] * (w.ndim - 1), n)
        y = self.y.reshape(x.shape)
        value, slope = self.psi(x * w[..., None])
        return (value - y) ** 2 / 2, (value - y) * slope * x

    def largest(self, w, R):
        """F̂_R(w), R draws with replacement."""
        weights = np.diff((np.arange(n + 1) / n) ** R)
        return np.sort(self.at(w)[0], -1) @ weights

    def prox(self, w, R, rounds=70):
        """argmin of F̂_R(v) + L(v - w)², strongly convex, by ternary search; and the minimum."""
        L = self._like(self.L, w)
        reach = np.sqrt(2 * self.largest(w, R) / L) + 1e-12  # |subgradient|/L and no more
        low, high = w - reach, w + reach
        for _ in range(rounds):
            a, b = low + (high - low) / 3, high - (high - low) / 3
            left = self.largest(a, R) + L * (a - w) ** 2 < self.largest(b, R) + L * (b - w) ** 2
            low, high = np.where(left, low, a), np.where(left, b, high)
        v = (low + high) / 2
        return v, self.largest(v, R) + L * (v - w) ** 2


KINDS = ["phase", "leaky", "squares"]


@pytest.mark.parametrize("kind", KINDS)
def test_smoothness_and_its_consequences_on_every_problem(kind):
    p = Neurons(kind, 0, misfit=kind != "leaky")
    w, v = p.w0, p.w0 + p.rng.standard_normal(P) * 3
    (f_w, g_w), (f_v, g_v) = p.at(w), p.at(v)
    L, r = p.L[:, None], np.abs(w - v)[:, None]
    tiny = 1e-12 * (1 + f_w + f_v)
    assert np.all(np.abs(g_w - g_v) <= L * r * (1 + 1e-9) + tiny)
    assert np.all(g_w**2 <= 2 * L * f_w * (1 + 1e-9) + tiny)  # |∇f|² <= 2Lf
    assert np.all(np.abs(np.sqrt(f_w) - np.sqrt(f_v)) <= np.sqrt(L / 2) * r * (1 + 1e-9) + 1e-9)


@pytest.mark.parametrize("R", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_the_mean_gradient_of_the_picked_is_a_weak_subgradient_of_the_largest(kind, R):
    p = Neurons(kind, 1, misfit=kind != "leaky")
    f, g = p.at(p.w0)
    tuples = np.array(list(itertools.product(range(n), repeat=R)))
    pick = np.take_along_axis(tuples[None], f[:, tuples].argmax(-1)[..., None], -1)[..., 0]
    mean = np.take_along_axis(g, pick, 1).mean(1)
    F = p.largest(p.w0, R)
    assert np.allclose(F, f[:, tuples].max(-1).mean(1))  # the weights are those of all tuples
    away = np.random.default_rng(2).standard_normal((8, P)) * 0.01 * 4.0 ** np.arange(8)[:, None]
    for v in p.w0 + away:
        below = F + mean * (v - p.w0) - p.L / 2 * (v - p.w0) ** 2
        assert np.all(below <= p.largest(v, R) + 1e-10 * (1 + F + np.abs(below)))


@pytest.mark.parametrize("rule", ["greedy", "anything"])
@pytest.mark.parametrize("kind", KINDS)
def test_one_step_of_the_envelope_in_exact_expectation(kind, rule):
    # E[φ(w₊)] over all tuples, and for `anything` over a random rule that picks from them
    R = 3
    p = Neurons(kind, 3, misfit=kind != "leaky")
    rng = np.random.default_rng(4)
    eta = rng.choice([0.01, 0.1, 0.5, 2], P) / p.L
    f, g = p.at(p.w0)
    tuples = np.array(list(itertools.product(range(n), repeat=R)))  # (T, R)
    if rule == "greedy":
        chance = np.zeros((P, len(tuples), R))
        np.put_along_axis(chance, f[:, tuples].argmax(-1)[..., None], 1.0, -1)
    else:
        chance = rng.dirichlet(np.full(R, 0.3), (P, len(tuples)))
    picked = (chance * f[:, tuples]).sum(-1).mean(1)
    F = p.largest(p.w0, R)
    share = np.where(F > 0, picked / np.where(F > 0, F, 1), 1.0)
    assert np.all(share <= 1 + 1e-12)
    v, phi = p.prox(p.w0, R)
    slope = 2 * p.L * (p.w0 - v)
    after = p.prox(p.w0[:, None] - eta[:, None] * g, R)[1]  # (P, n): one for each sample picked
    weight = np.zeros((P, n))
    np.add.at(weight, (np.arange(P)[:, None, None], tuples[None]), chance / len(tuples))
    mean = (weight * after).sum(1)
    growth = 3 * eta * p.L * (1 - share) + 3 * (eta * p.L) ** 2
    bound = (1 + growth) * phi - eta / 2 * slope**2
    assert np.all(mean <= bound + 1e-9 * (phi + 1e-6))
    # F <= F̂_R <= (3/2) φ, and φ <= F̂_R
    assert np.all(1.5 * phi * (1 + 1e-9) + 1e-12 >= F)
    assert np.all(phi <= F * (1 + 1e-12) + 1e-25)


def run(p, eta, R, K, S, seed, noise=0.0):
    """S runs of GSGD, one step size for all steps or one for each; w at every step."""
    rng = np.random.default_rng(seed)
    w = np.repeat(p.w0[:, None], S, 1)
    path = [w]
    rows, cols = np.arange(P)[:, None], np.arange(S)
    for k in range(K):
        f, g = p.at(w)
        index = rng.integers(n, size=(P, S, R))
        score = np.take_along_axis(f, index, -1)
        if noise:
            score = score * np.exp(noise * rng.standard_normal(score.shape))
        best = np.take_along_axis(index, score.argmax(-1)[..., None], -1)[..., 0]
        step = eta[:, k] if eta.ndim == 2 else eta
        w = w - step[:, None] * g[rows, cols, best]
        path.append(w)
    return np.stack(path)  # (K + 1, P, S)


@pytest.mark.parametrize("kind", KINDS)
def test_no_random_problem_is_above_the_envelopes_bound(kind):
    # 1 000 problems × 8 runs; τ drawn with its weights; tolerance: 4 standard errors
    R, K, S = 3, 20, 8
    p = Neurons(kind, 5, misfit=kind != "leaky")
    rng = np.random.default_rng(6)
    eta = rng.choice([0.02, 0.1, 0.3], P) / p.L
    path = run(p, eta, R, K, S, 7)
    F0 = p.prox(p.w0, R)[1]
    F_star = least(p, path, R)
    assert np.all(F_star <= F0)
    assert (F_star > 0.01).sum() > 400 or kind == "leaky"
    tests = [("weighted", 1 + 3 * (eta * p.L) ** 2)]
    tests += [("even", np.ones(P))] if kind == "phase" else []
    for name, A in tests:
        chance = (1 / A[:, None]) ** np.arange(K)
        edges = np.cumsum(chance / chance.sum(1, keepdims=True), 1)
        tau = (rng.random((P, S, 1)) > edges[:, None, :-1]).sum(-1)
        w = np.take_along_axis(path[:K], tau[None], 0)[0]
        square = (2 * p.L[:, None] * (w - p.prox(w, R, rounds=34)[0])) ** 2
        low = square.mean(1) - 4 * square.std(1, ddof=1) / np.sqrt(S)
        if name == "even":  # with the largest gradient that the runs have met for G
            G = np.sqrt((p.at(path[:K].transpose(1, 0, 2))[1] ** 2).max((1, 2, 3)))
            bound = weakly_convex_bound(K, eta, p.L, F0, F_star=F_star, G=G)
            assert np.all(low <= bound * (1 + 1e-6) + 1e-9)
            continue
        for floor in (0.0, F_star):
            bound = weakly_convex_bound(K, eta, p.L, F0, F_star=floor)
            assert np.all(low <= bound * (1 + 1e-6) + 1e-9)


def least(p, path, R):
    """A number below F̂_R wherever the runs or their proximal points can be.

    √F̂_R changes by at most √(L/2) per unit, since every √f does, so that a grid bounds it.
    """
    reach = np.sqrt(2 * np.stack([p.largest(w, R) for w in path]).max((0, 2)) / p.L)
    low, high = path.min((0, 2)) - reach, path.max((0, 2)) + reach
    grid = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, 1001)
    root = np.sqrt(p.largest(grid, R).min(1)) - np.sqrt(p.L / 2) * (high - low) / 2000
    return np.maximum(root, 0) ** 2


def leaky_constants(p):
    """c, the growth m of F, and the PL constant of F̂_R with ρ = 1."""
    m = p.slope**2 * (p.x**2).mean(1)
    return 2 * p.slope, m, p.slope**4 * (p.x**2).mean(1)


@pytest.mark.parametrize("R", [2, 3])
def test_the_conditions_hold_for_leaky_neurons(R):
    p = Neurons("leaky", 8)
    c, m, pl = leaky_constants(p)
    assert np.all(m > 0)
    assert np.all(pl <= p.L)
    w = p.truth + np.random.default_rng(9).standard_normal((6, P)) * 3
    for v in w:
        f, g = p.at(v)
        away = v - p.truth
        assert np.all(g * away[:, None] >= c[:, None] * f * (1 - 1e-9) - 1e-12)
        assert np.all(f.mean(1) >= m / 2 * away**2 * (1 - 1e-9) - 1e-12)
        # PL, for the mean gradient of the picked; and what the envelope inherits of it
        order = np.argsort(f, 1)
        weights = np.diff((np.arange(n + 1) / n) ** R)
        slope = (np.take_along_axis(g, order, 1) * weights).sum(1)
        assert np.all(slope**2 >= 2 * pl * p.largest(v, R) * (1 - 1e-9) - 1e-12)
        near, phi = p.prox(v, R)
        inherited = 2 * p.L * pl / (2 * p.L + pl)
        square = (2 * p.L * (v - near)) ** 2
        assert np.all(square >= 2 * inherited * phi * (1 - 1e-5) - 1e-9)


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_no_random_problem_is_above_the_linear_bounds(noise):
    # 1 000 problems × 16 runs × 40 steps; tolerance: 4 standard errors
    R, K, S = 3, 40, 16
    p = Neurons("leaky", 10)
    c, m, pl = leaky_constants(p)
    fraction = np.random.default_rng(11).uniform(0.05, 0.95, P)
    D0 = np.abs(p.w0 - p.truth)
    eta = fraction * c / p.L
    path = run(p, eta, R, K, S, 12, noise)
    F = np.stack([p.at(w)[0].mean(-1) for w in path])  # (K + 1, P, S)
    error = 4 / np.sqrt(S)
    for k in (1, 5, 20, K):
        square = (path[k] - p.truth[:, None]) ** 2
        bound = quasar_distance_bound(k, eta, p.L, D0, 1.0, m, c=c)
        assert np.all(square.mean(1) - error * square.std(1, ddof=1) <= bound * (1 + 1e-9) + 1e-12)
        mean = F[:k].mean(0)
        bound = quasar_bound(k, eta, p.L, D0, 1.0, c=c)
        assert np.all(mean.mean(1) - error * mean.std(1, ddof=1) <= bound * (1 + 1e-9) + 1e-12)
    if noise == 0:
        F0 = p.prox(p.w0, R)[1]
        eta = 2 * fraction * pl_step_size(p.L, pl)
        path = run(p, eta, R, K, S, 13)
        for k in (1, 5, 20, K):
            value = p.at(path[k])[0].mean(-1)
            low = value.mean(1) - error * value.std(1, ddof=1)
            assert np.all(low <= pl_bound(k, eta, p.L, pl, F0) * (1 + 1e-9) + 1e-12)


@pytest.mark.parametrize("kind", ["phase", "leaky"])
def test_no_random_problem_is_above_the_bounds_under_noise(kind):
    # Gaussian noise of the log-losses; p is the exact worst case; 1 000 problems × 8 runs
    R, K, S = 3, 20, 8
    p = Neurons(kind, 16)
    rng = np.random.default_rng(17)
    sigma = 0.3
    share = p_noise_many(sigma, R, method="gaussian")
    eta = rng.choice([0.01, 0.05, 0.2], P) / p.L
    path = run(p, eta, R, K, S, 18, sigma)
    F0 = p.prox(p.w0, R)[1]
    A = 1 + 3 * eta * p.L * (1 - share) + 3 * (eta * p.L) ** 2
    chance = (1 / A[:, None]) ** np.arange(K)
    edges = np.cumsum(chance / chance.sum(1, keepdims=True), 1)
    tau = (rng.random((P, S, 1)) > edges[:, None, :-1]).sum(-1)
    w = np.take_along_axis(path[:K], tau[None], 0)[0]
    square = (2 * p.L[:, None] * (w - p.prox(w, R, rounds=34)[0])) ** 2
    low = square.mean(1) - 4 * square.std(1, ddof=1) / np.sqrt(S)
    bound = weakly_convex_bound(K, eta, p.L, F0, share=share)
    assert np.all(low <= bound * (1 + 1e-6) + 1e-9)
    if kind == "leaky":
        value = p.at(path[K])[0].mean(-1)
        low = value.mean(1) - 4 * value.std(1, ddof=1) / np.sqrt(S)
        pl = leaky_constants(p)[2]
        assert np.all(low <= pl_bound(K, eta, p.L, pl, F0, share=share) * (1 + 1e-9) + 1e-12)


def test_no_random_problem_without_a_fit_is_above_the_bound_of_losses_that_aim():
    # squares are convex: c = 1, and Δ_R at the minimiser of F, which does not fit the samples
    R, K, S = 3, 30, 16
    p = Neurons("squares", 19, misfit=True)
    best = (p.x * p.y).sum(1) / (p.x**2).sum(1)
    Delta = p.largest(best, R)
    assert (Delta > 0.1).sum() > 500
    eta = np.random.default_rng(20).uniform(0.05, 0.95, P) / p.L
    for noise in (0.0, 1.0):
        path = run(p, eta, R, K, S, 21, noise)
        F = np.stack([p.at(w)[0].mean(-1) for w in path[:K]])
        for k in (1, 10, K):
            mean = F[:k].mean(0)
            low = mean.mean(1) - 4 * mean.std(1, ddof=1) / np.sqrt(S)
            bound = quasar_bound(k, eta, p.L, np.abs(p.w0 - best), 1.0, c=1, Delta=Delta)
            assert np.all(low <= bound * (1 + 1e-9) + 1e-12)
    # GSGD with decaying steps: the bound with ρ = 1, at the weighted mean iterate
    steps = eta[:, None] / np.sqrt(np.arange(1, K + 1))
    path = run(p, steps, R, K, S, 22)
    weights = steps * (1 - steps * p.L[:, None])
    mean = np.einsum("pk,kps->ps", weights / weights.sum(1, keepdims=True), path[:K])
    value = p.at(mean)[0].mean(-1)
    low = value.mean(1) - 4 * value.std(1, ddof=1) / np.sqrt(S)
    bound = [
        decaying_bound(s, L, D0, D)[-1]
        for s, L, D0, D in zip(steps, p.L, np.abs(p.w0 - best), Delta, strict=True)
    ]
    assert np.all(low <= np.array(bound) * (1 + 1e-9) + 1e-12)


def test_the_ratio_along_the_path_may_stand_for_rho():
    # measured ρ of each problem's runs, in the bound on the mean of F
    R, K, S = 3, 30, 20
    p = Neurons("leaky", 14)
    c, _, _ = leaky_constants(p)
    eta = 0.5 * c / p.L
    path = run(p, eta, R, K, S, 15)
    F = np.stack([p.at(w)[0].mean(-1) for w in path[:K]])
    top = np.stack([p.largest(w, R) for w in path[:K]])
    seen, best = F.sum((0, 2)), top.sum((0, 2))
    rho = np.where(seen > 0, best / np.where(seen > 0, seen, 1), 1)
    assert np.median(rho) > 1.2
    mean = F.mean(0)
    bound = quasar_bound(K, eta, p.L, np.abs(p.w0 - p.truth), rho, c=c)
    assert np.all(mean.mean(1) - 4 * mean.std(1, ddof=1) / np.sqrt(S) <= bound * (1 + 1e-9) + 1e-12)


def test_convex_losses_are_the_papers_theorem():
    args = {"eta": 0.01, "L": 50, "D0": 2, "rho": 1.5}
    assert quasar_bound(1000, **args, c=1, Delta=0.3) == gsgd_bound(1000, **args, Delta=0.3)


def test_the_linear_rate_is_attained():
    # squares in one dimension: f = Lw²/2, c = 2, growth L: (1 - ηL)² against 1 - η(2 - ηL)L
    bound = quasar_distance_bound(7, 0.3, 2.0, 5.0, 1.0, 2.0, c=2)
    assert bound == pytest.approx(25 * (1 - 0.6) ** 14, rel=1e-12)


def test_closed_forms_against_sums_and_recursions():
    K, eta, L, F0, F_star, p = 57, 0.03, 4.0, 2.0, 0.3, 0.97
    A = 1 + 3 * eta * L * (1 - p) + 3 * eta**2 * L**2
    weights = sum(A ** -(k + 1) for k in range(K))
    by_sum = 2 / eta * ((F0 - F_star) / weights + (A - 1) * F_star)
    got = weakly_convex_bound(K, eta, L, F0, F_star=F_star, share=p)
    assert got == pytest.approx(by_sum, rel=1e-12)
    m, value = 1.5, 1.0
    for _ in range(K):
        value *= 1 - eta * (2 * L * m / (2 * L + m)) + A - 1
    assert pl_bound(K, eta, L, m, F0, rho=1.2, share=p) == pytest.approx(1.5 / 1.2 * F0 * value)


def test_edges_and_limits():
    tiny = weakly_convex_bound(1, 1e-12, 1, 2)
    assert tiny == pytest.approx(2 * 2 / 1e-12)
    K = 10**8  # with η = 1/(L√(3K)) the bound falls as 1/√K, below 2e√3 LF0/√K
    assert weakly_convex_bound(K, 1 / (3 * np.sqrt(3 * K)), 3, 2) < 2 * np.e * np.sqrt(3) * 6 / 1e4
    assert weakly_convex_bound(10, 0.1, 1, 0) == 0
    assert weakly_convex_bound(5, 1e-200, 1, 1) == pytest.approx(4e199)  # A is 1 but for rounding
    assert pl_bound(10**6, 10, 1, 1, [0, 1]).tolist() == [0, np.inf]  # far too long a step
    assert pl_bound(5, 0.1, 1, 1, 0) == 0
    best = pl_step_size(4, 2)
    near = pl_bound(1000, best * np.array([0.99, 1, 1.01]), 4, 2, 1)
    assert near.argmin() == 1
    assert pl_bound(10, 2 * best, 4, 2, 1) == pytest.approx(1.5)  # the longest step: no fall
    assert pl_step_size(4, 4) == pytest.approx(8 / 3 / 96)  # m = L
    assert quasar_bound(1, 0.1, 1, 0, 1) == 0
    both = quasar_bound(1000, 0.01, 50, 2, 1.5, c=0.8, Delta=0.3)  # c multiplies Δ as well
    assert both == pytest.approx((0.2 + 0.8 * 0.3) / (1.5 * 0.3))
    assert quasar_distance_bound(3, 0.1, 1, 2, 1, 0) == 4  # no growth: no rate
    assert quasar_distance_bound(1, 0.5, 2, 2, 1, 2, c=2) == 0  # one Newton step


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weakly_convex_bound(0, 0.1, 1, 1), "K = 0"),
        (lambda: weakly_convex_bound(1, 0, 1, 1), "eta = 0, but eta > 0"),
        (lambda: weakly_convex_bound(1, 0.1, -1, 1), "L = -1"),
        (lambda: weakly_convex_bound(1, 0.1, 1, -1), "F0 = -1"),
        (lambda: weakly_convex_bound(1, 0.1, 1, 1, F_star=2), "F_star = 2, but 0 <= F_star <= F0"),
        (lambda: weakly_convex_bound(1, 0.1, 1, 1, share=0), "share = 0, but 0 < share <= 1"),
        (lambda: weakly_convex_bound(1, 0.1, 1, 1, share=0.9, G=1), "share = 0.9 with G"),
        (lambda: weakly_convex_bound(1, 0.1, 1, 1, G=-1), "G = -1"),
        (lambda: pl_bound(1, 0.1, 1, 2, 1), "m = 2, but 0 < m <= L"),
        (lambda: pl_bound(1, 0.1, 1, 0, 1), "m = 0"),
        (lambda: pl_bound(1, 0.1, 1, 1, 1, rho=0.5), "rho = 0.5, but rho >= 1"),
        (lambda: pl_step_size([4, 4], 2, share=[1, 0.5]), "share = 0.5 with L = 4 and m = 2"),
        (lambda: quasar_bound(1, 1, 1, 1, 1), "eta = 1, but 0 < eta < c/L"),
        (lambda: quasar_bound(1, 0.1, 1, 1, 0), "rho = 0"),
        (lambda: quasar_bound(1, 0.1, 1, 1, 1, c=0), "c = 0"),
        (lambda: quasar_bound(1, 0.1, 1, -1, 1), "D0 = -1"),
        (lambda: quasar_bound(1, 0.1, 1, 1, 1, Delta=-1), "Delta = -1"),
        (lambda: quasar_distance_bound(1, 0.5, 1, 1, 9, 9), "growth = 9 with rho = 9"),
        (lambda: quasar_distance_bound(1, 0.5, 1, 1, 1, -1), "growth = -1"),
    ],
)
def test_out_of_domain_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
