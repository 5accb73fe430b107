"""The kept-loss rule: every inequality on a thousand random problems, exactly where it can be."""

import itertools

import numpy as np
import pytest
from scipy import integrate, special

from sifting.theory import (
    decaying_bound,
    kept_gradient_gap,
    kept_loss_bound,
    kept_loss_floor,
    kept_loss_speedup,
    kept_share,
    kept_smoothness,
    safe_ratio,
)
from tests.helpers.finite_sums import P, Problems


def contribution(losses, gradients, epsilon):
    """The sum of the kept's gradients over B, by a plain reading of the rule; and the mask."""
    B = losses.shape[-1]
    order = np.argsort(-losses, axis=-1)
    kept = np.zeros(losses.shape, bool)
    counts = np.rint(safe_ratio(losses, epsilon) * B).astype(int)
    np.put_along_axis(kept, order, np.arange(B) < counts[..., None], -1)
    return (kept[..., None] * gradients).sum(-2) / B, kept


def every_batch(p, B):
    """Losses and gradients of all nᴮ batches at w0: (P, batches, B[, D])."""
    index = np.array(list(itertools.product(range(p.x.shape[1]), repeat=B)))
    return p.losses(p.w0)[:, index], p.gradients(p.w0)[:, index], index


@pytest.fixture(scope="module")
def problems():
    return Problems(0)


def test_gap_between_the_mean_gradient_and_the_kepts_contribution(problems):
    p = problems
    losses, gradients, _ = every_batch(p, 3)
    step, kept = contribution(losses, gradients, p.epsilon[:, None])
    gap = np.linalg.norm(gradients.mean(-2) - step, axis=-1)
    F = losses.mean(-1)
    mu = np.clip((losses * kept).mean(-1) / np.where(F > 0, F, 1), 0, 1)
    mu = np.where(F > 0, mu, 1.0)
    L = p.L[:, None]
    tight = kept_gradient_gap(mu, L, F, keep=kept.mean(-1))
    assert np.all(gap <= tight * (1 + 1e-9) + 1e-7 * np.sqrt(L * F))
    assert np.all(tight <= kept_gradient_gap(mu, L, F))
    assert np.all(1 - mu <= p.epsilon[:, None] + 1e-12)


def test_the_gap_is_attained():
    # one sample dropped out of two that are alike but for a sign: equality, with keep = 1/2
    gradient, L = np.array([3.0, -1.0]), 2.0
    f = (gradient**2).sum() / (2 * L)
    gap = np.linalg.norm(gradient / 2)
    assert kept_gradient_gap(1, L, f) == kept_gradient_gap(0, L, 0) == 0
    assert kept_gradient_gap(0, L, f) == pytest.approx(np.sqrt(2 * L * f))  # all are dropped
    assert gap == pytest.approx(kept_gradient_gap(0.5, L, f, keep=0.5), rel=1e-14)


def test_one_step_in_exact_expectation_on_every_problem(problems):
    # E|w₊ - w*|² and E|direction|² over all 64 batches: no sampling, no tolerance but rounding
    p = problems
    losses, gradients, index = every_batch(p, 3)
    step, _ = contribution(losses, gradients, p.epsilon[:, None])
    F, eps, L = p.F(p.w0), p.epsilon, p.L
    eta = p.fraction / L
    after = ((p.w0[:, None] - eta[:, None, None] * step - p.best[:, None]) ** 2).sum(-1).mean(1)
    bound = p.D0**2 - 2 * eta * (1 - eta * L) * (1 - eps) * F + 2 * eta * p.F_star
    scale = p.D0**2 + eta * F
    assert np.all(after <= bound + 1e-12 * scale)
    square = (step**2).sum(-1).mean(1)
    Lambda = kept_smoothness(L, eps, B=3, L_F=p.L_F)
    assert np.all(square <= 2 * Lambda * F * (1 + 1e-12))
    assert np.all(square <= 2 * L * F * (1 + 1e-12))
    assert index.shape == (64, 3)


def test_one_step_with_an_epsilon_that_shrinks_with_the_loss(problems):
    # what K5 sums up, in exact expectation; and its floor, which is where the sum's terms vanish
    p = problems
    F, eta, a = p.F(p.w0), p.fraction / p.L, 1 - p.fraction
    c = np.random.default_rng(6).choice([0.0, 0.05, 0.3], P) / (p.F_star + 0.1)
    losses, gradients, _ = every_batch(p, 3)
    step, _ = contribution(losses, gradients, np.minimum(p.epsilon, c * F)[:, None])
    after = ((p.w0[:, None] - eta[:, None, None] * step - p.best[:, None]) ** 2).sum(-1).mean(1)
    room = a * (1 - p.epsilon - c * p.F_star)
    stays = eta * p.L * p.F_star + a * c * p.F_star**2
    bound = p.D0**2 - 2 * eta * (room * (F - p.F_star) - stays)
    assert np.all(after <= bound + 1e-12 * (p.D0**2 + eta * F))
    proved = room > 0
    fixed = p.F_star / (a * (1 - p.epsilon))
    shrinking = np.where(proved, p.F_star + stays / np.where(proved, room, 1), np.inf)
    got = kept_loss_floor(p.F_star, p.epsilon, eta=eta, L=p.L, per_loss=c)
    assert np.allclose(got, np.minimum(fixed, shrinking), rtol=1e-12)
    assert ((shrinking < fixed) & (c > 0) & (p.F_star > 0)).sum() > 100


def test_logistic_losses_obey_the_same_step_inequality():
    # convex and smooth but not quadratic, infimum 0 not attained; any reference point w* will do
    rng = np.random.default_rng(5)
    n, D, B = 4, 2, 3
    x = rng.standard_normal((P, n, D)) * rng.choice([0.3, 1, 4], (P, 1, 1))
    y = rng.choice([-1.0, 1.0], (P, n))
    w, best = 3 * rng.standard_normal((2, P, D))
    L = (x**2).sum(-1).max(-1) / 4
    eps = rng.uniform(0, 0.9, P)
    eta = rng.uniform(0.02, 0.98, P) / L

    def losses(v):
        return np.logaddexp(0, -y * np.einsum("pnd,pd->pn", x, v))

    slope = -y / (1 + np.exp(y * np.einsum("pnd,pd->pn", x, w)))
    index = np.array(list(itertools.product(range(n), repeat=B)))
    step, _ = contribution(losses(w)[:, index], (slope[..., None] * x)[:, index], eps[:, None])
    after = ((w[:, None] - eta[:, None, None] * step - best[:, None]) ** 2).sum(-1).mean(1)
    before = ((w - best) ** 2).sum(-1)
    fall = 2 * eta * ((1 - eta * L) * (1 - eps) * losses(w).mean(1) - losses(best).mean(1))
    assert np.all(after <= before - fall + 1e-12 * (before + np.abs(fall)))


def test_where_the_loss_is_spread_the_rule_stops_selecting():
    rng = np.random.default_rng(0)
    B, eps = 50, 0.1
    for top in (1.0, 1.5, 4.0):  # no loss above `top` times the mean: keep >= (1 - ε)/top
        losses = rng.uniform(0.2, 1, (P, B))
        losses /= losses.max(1, keepdims=True)
        losses = losses * top if top > 1 else np.ones((P, B))
        spread = losses.max(1) / losses.mean(1)
        assert np.all(safe_ratio(losses, eps) >= (1 - eps) / spread - 1e-12)
    assert np.all(safe_ratio(np.ones((3, B)), 0.019) == 1)  # below 1/B: exactly SGD
    least = rng.uniform(0.5, 1, (P, B))
    assert np.all(1 - safe_ratio(least, eps) <= eps * least.mean(1) / least.min(1) + 1e-12)


def test_safe_ratio_is_the_smallest_that_is_safe():
    rng = np.random.default_rng(1)
    losses = rng.exponential(size=(P, 9)) ** rng.choice([0, 1, 5], (P, 1))
    eps = rng.uniform(0, 0.99, P)
    k = np.rint(safe_ratio(losses, eps) * 9).astype(int)
    sums = np.cumsum(np.sort(losses, 1)[:, ::-1], 1)
    rows, total = np.arange(P), losses.sum(1)
    assert np.all(sums[rows, k - 1] >= (1 - eps) * total * (1 - 1e-12))
    fewer = np.where(k > 1, sums[rows, np.maximum(k - 2, 0)], 0.0)
    assert np.all(fewer <= (1 - eps) * total * (1 + 1e-12))


def test_safe_ratio_at_the_edges():
    assert safe_ratio([0.0], 0.5) == 1
    assert safe_ratio([3.0], 0.99) == 1
    assert safe_ratio([0, 0, 5], 0) == pytest.approx(1 / 3)
    assert safe_ratio([0.0, 0.0, 0.0, 0.0], 0.5) == 0.25  # nothing left: one
    assert safe_ratio([1e-300, 1e-300], 0.4) == 1
    assert safe_ratio([1e308, 1e308, 1e308], 0.4) == pytest.approx(2 / 3)  # no overflow
    assert safe_ratio([1e-20, 1.0], 0) == 1  # a tiny loss is not lost beside a large one
    assert safe_ratio(np.ones((4, 2, 5)), [0.0, 0.5]).shape == (4, 2)


def test_speedup_is_the_ratio_of_the_bounds_at_their_best_steps():
    rng = np.random.default_rng(2)
    L_F = rng.uniform(0.1, 1, P)
    N = np.exp(rng.uniform(0, 8, P) * rng.choice([0, 1], P, p=[0.1, 0.9]))
    L, b = N * L_F, rng.integers(1, 100, P) ** rng.choice([0, 1], P)
    R = rng.integers(1, 9, P)
    eps = rng.choice([0, 1e-4, 1e-2, 0.3], P)

    def first_term(B, eps):  # at the better of the steps that suit either factor
        options = {"F_star": 0, "epsilon": eps, "B": B, "L_F": L_F}
        steps = (1 / (2 * L), (1 - eps) / (2 * kept_smoothness(L, eps, B=B, L_F=L_F)))
        return np.minimum(*(kept_loss_bound(1, eta, L, 1, **options) for eta in steps))

    speedup = kept_loss_speedup(R, N, b, epsilon=eps)
    assert np.allclose(first_term(b, 0 * eps) / first_term(R * b, eps), speedup, rtol=1e-9)
    assert np.all(speedup <= R * (1 + 1e-12))
    most = ((1 - eps) / (np.sqrt(1 / R) + np.sqrt(eps))) ** 2
    assert np.all(speedup <= np.maximum(most, 1) * (1 + 1e-12))
    assert np.all(np.diff(kept_loss_speedup(4, 100, 8, epsilon=[0, 0.001, 0.01, 0.1])) < 0)
    assert kept_loss_speedup(1, 7, 3) == pytest.approx(1)
    assert kept_loss_speedup(5, 1e300, 1) == pytest.approx(5)
    assert kept_loss_speedup(5, 1e300, 1, epsilon=0.01) == pytest.approx((0.99 / 0.5472136) ** 2)
    assert kept_loss_speedup(1e9, 1, 1) == 1  # all gradients alike: a larger batch is no better
    assert kept_loss_speedup(1e9, 100, 1) == pytest.approx(100, rel=1e-6)  # huge R: N


def test_which_laws_of_the_loss_allow_a_gain():
    # the most that any N and b allow, over what is kept
    keep = np.linspace(1e-4, 1, 20_001)[:-1]

    def most(law, spread=1.0):
        eps = 1 - kept_share(keep, law=law, spread=spread)
        return (((1 - eps) / (np.sqrt(keep) + np.sqrt(eps))) ** 2).max()

    root = np.sqrt(keep)  # the proof for exponential losses: √ε >= 1 - √keep
    eps = 1 - kept_share(keep)
    assert np.all(eps >= (1 - root) ** 2 - 1e-12)
    assert np.allclose(eps - (1 - root) ** 2, 2 * root * (1 - root + root * np.log(root)))
    assert most("exponential") < 1
    assert most("lognormal", 1.5) < 1 < 1.03 < most("lognormal", 1.6) < 1.04
    assert most("gaussian") == pytest.approx(1.077, abs=1e-3)
    assert most("lognormal", 3) == pytest.approx(3.347, abs=1e-3)


def test_a_longer_step_does_speed_up_runs():
    # isotropic features, a perfect fit: steps to a hundredth of the loss, b = 1 against R = 8
    rng = np.random.default_rng(0)
    D, R = 24, 8
    need = {}
    for name, B in (("sgd", 1), ("all", R)):
        eta = 1 / (2 * (1 + D / B))
        w = np.ones((100, D))
        for k in range(2000):
            x = rng.standard_normal((100, B, D))
            x *= np.sqrt(D) / np.linalg.norm(x, axis=-1, keepdims=True)
            w = w - eta * np.einsum("sb,sbd->sd", np.einsum("sbd,sd->sb", x, w), x) / B
            if (w**2).sum(1).mean() < D / 100:
                need[name] = k + 1
                break
    assert need["sgd"] / need["all"] == pytest.approx(kept_loss_speedup(R, D, 1), rel=0.15)


@pytest.mark.parametrize("keep", [0.0, 1e-6, 0.01, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("law", ["exponential", "gaussian", "lognormal"])
def test_kept_share_against_quadrature(law, keep):
    spread = 1.5
    loss_above = {  # the loss that a share s of the losses exceeds
        "exponential": lambda s: -np.log(s),
        "gaussian": lambda s: special.ndtri(s / 2) ** 2,
        "lognormal": lambda s: np.exp(-spread * special.ndtri(s) - spread**2 / 2),
    }[law]
    # over s = keep e^{-t²}, so that the end at s = 0 is no singularity
    value, _ = integrate.quad(
        lambda t: loss_above(keep * np.exp(-t * t)) * keep * 2 * t * np.exp(-t * t),
        0, 12, epsabs=1e-13, epsrel=1e-12, limit=400,
    ) if keep > 0 else (0.0, 0.0)  # fmt: skip
    got = kept_share(keep, law=law, spread=spread)
    assert got == pytest.approx(value, abs=1e-8)
    assert got >= keep


def test_kept_share_is_what_samples_carry():
    rng = np.random.default_rng(0)
    for law, losses in (
        ("exponential", rng.exponential(size=200_000)),
        ("gaussian", rng.standard_normal(200_000) ** 2),
        ("lognormal", np.exp(rng.standard_normal(200_000))),
    ):
        ratio = safe_ratio(losses, 0.1)
        assert kept_share(ratio, law=law) == pytest.approx(0.9, abs=0.01)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: safe_ratio([1, -1], 0.1), r"losses\[1\] = -1, but losses >= 0"),
        (lambda: safe_ratio([1, np.nan], 0.1), r"losses\[1\] = nan"),
        (lambda: safe_ratio([1, 2], 1.0), "epsilon = 1, but 0 <= epsilon < 1"),
        (lambda: safe_ratio([1, 2], -0.1), "epsilon = -0.1"),
        (lambda: safe_ratio(3.0, 0.1), r"losses has shape \(\)"),
        (lambda: safe_ratio([], 0.1), r"losses has shape \(0,\)"),
        (lambda: kept_gradient_gap(1.1, 1, 1), "mu = 1.1, but 0 <= mu <= 1"),
        (lambda: kept_gradient_gap(0.5, 0, 1), "L = 0, but L > 0"),
        (lambda: kept_gradient_gap(0.5, 1, -1), "F = -1, but F >= 0"),
        (lambda: kept_gradient_gap(0.5, 1, 1, keep=2), "keep = 2"),
        (lambda: kept_loss_bound(0, 0.01, 50, 2, 0.1, 0.1), "K = 0"),
        (lambda: kept_loss_bound(1, 0.02, 50, 2, 0.1, 0.1), "eta = 0.02 with L = 50 and epsilon"),
        (lambda: kept_loss_bound(1, 0.3, 50, 2, 0.1, 0.1, B=64, L_F=2), "but eta < 0.059"),
        (lambda: kept_loss_bound(1, 0.01, 50, 2, 0.1, 0.1, B=0), "B = 0"),
        (lambda: kept_loss_bound(1, 0.01, 50, 2, 0.1, 0.1, B=4, L_F=51), "L_F = 51, but"),
        (lambda: kept_loss_bound(1, 0.01, 50, 2, 0.1, 0.1, per_loss=-1), "per_loss = -1"),
        (lambda: kept_loss_floor(-1, 0.1), "F_star = -1"),
        (lambda: kept_loss_floor(1, 0.1, eta=1), "eta = 1, but 0 <= eta < 1/L"),
        (lambda: decaying_bound([[0.01]], 50, 2, 0.1), "eta has shape"),
        (lambda: decaying_bound([0.01], 50, 2, 0.1, rho=0), "rho = 0"),
        (lambda: kept_loss_speedup(0.5, 1, 1), "R = 0.5, but R >= 1"),
        (lambda: kept_loss_speedup(2, 0.5, 1), "noise_scale = 0.5, but noise_scale >= 1"),
        (lambda: kept_loss_speedup(2, 1, 0), "batch_size = 0"),
        (lambda: kept_share(1.5), "keep = 1.5"),
        (lambda: kept_share(0.5, law="cauchy"), "law = 'cauchy', but"),
        (lambda: kept_share(0.5, law="lognormal", spread=-1), "spread = -1"),
    ],
)  # fmt: skip
def test_out_of_domain_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
