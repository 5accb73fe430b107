"""Greedy SGD without convexity: bounds through F̂_R, of which it is a stochastic subgradient method.

E[∇f(w, x̂)] is a subgradient of F̂_R(w) = E[max of R losses], which is L-weakly convex where every
f is L-smooth. With φ the Moreau envelope of F̂_R with parameter 1/(2L), F <= F̂_R/ρ <= 3φ/(2ρ), and
one step of GSGD, whose losses keep a share p of F̂_R where they are noisy, obeys

    E[φ(w₊)] <= A φ(w) - (η/2) |∇φ(w)|²,    A = 1 + 3ηL(1 - p) + 3η²L²

Proofs, and what of them is Davis and Drusvyatskiy's (2019): docs/theory.md, "Not convex".
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sifting.theory._checks import (
    FloatOrArray,
    Floats,
    distance,
    floats,
    loss_ratio,
    mean_loss,
    nonnegative,
    positive,
    smoothness,
    step_count,
    step_size,
    unwrap,
)


def weakly_convex_bound(
    K: ArrayLike,
    eta: ArrayLike,
    L: ArrayLike,
    F0: ArrayLike,
    *,
    F_star: ArrayLike = 0.0,
    share: ArrayLike = 1.0,
    G: ArrayLike | None = None,
) -> FloatOrArray:
    """The bound on E|∇φ(w_τ)|², how far from stationary an iterate of GSGD drawn at random is.

    >>> weakly_convex_bound(K=10_000, eta=1e-4, L=10, F0=2)
    4.0603...
    >>> weakly_convex_bound(K=10_000, eta=1e-4, L=10, F0=2, share=0.999)  # noisy losses
    4.1212...
    >>> weakly_convex_bound(K=10_000, eta=1e-4, L=10, F0=2, G=3)  # Davis and Drusvyatskiy
    4.018

    τ is drawn from 0 … K - 1 with chances in proportion to A^{-τ}, or evenly where G is given; the
    least over τ obeys the bound too. It falls as 1/√K for η = 1/(L√(3K)). |∇φ(w)| = g means that
    some v with |v - w| = g/(2L) has a subgradient of F̂_R no longer than g.

    Args:
        K: steps taken, at least 1.
        eta: the constant step size, of any length above 0.
        L: the smoothness constant that every sample's loss obeys.
        F0: φ(w_0), or anything above it such as F̂_R(w_0).
        F_star: the minimum of F̂_R, or anything from 0 up to it.
        share: p, the least of ρ_approx/ρ over w, where noisy losses select: `p_noise_many`.
        G: where E|∇f(w, x̂)|² <= G² is known all along the path; for exact losses.
    """
    K = step_count(K)
    eta = step_size(eta)
    L = smoothness(L)
    F0 = mean_loss("F0", F0)
    F_star = floats("F_star", F_star, lambda x: (x >= 0) & (x <= F0), "0 <= F_star <= F0",
                    "the minimum is not above the start")  # fmt: skip
    p = _share(share)
    if G is not None:
        G = nonnegative("G", G, "it is a length")
        if not np.all(p == 1):
            raise ValueError(
                f"share = {float(np.min(p)):.12g} with G, but share = 1 must hold: leave G out"
            )
        return unwrap(2 * (F0 - F_star) / (eta * K) + 2 * L * eta * G**2)
    growth = 3 * eta * L * (1 - p) + 3 * (eta * L) ** 2  # A - 1
    with np.errstate(invalid="ignore", divide="ignore"):  # Σ A^{-(k+1)}; K where A - 1 is too small
        weights = np.where(growth > 0, -np.expm1(-K * np.log1p(growth)) / growth, K)
    return unwrap(2 / eta * ((F0 - F_star) / weights + growth * F_star))


def pl_bound(
    K: ArrayLike,
    eta: ArrayLike,
    L: ArrayLike,
    m: ArrayLike,
    F0: ArrayLike,
    *,
    rho: ArrayLike = 1.0,
    share: ArrayLike = 1.0,
) -> FloatOrArray:
    """The bound on E[F(w_K)] under a Polyak-Łojasiewicz condition with interpolation: linear.

    >>> eta = pl_step_size(L=4, m=2)
    >>> pl_bound([100, 10_000], eta, L=4, m=2, F0=3, rho=1.5)
    array([7.83730753e-01, 1.51944382e-58])

    3/(2ρ) F0 (1 - ηm' + 3ηL(1 - p) + 3η²L²)^K with m' = 2Lm/(2L + m).

    Args:
        K: steps taken, at least 1.
        eta: the constant step size; it shrinks F where 0 < η < (m' - 3L(1 - p))/(3L²).
        L: the smoothness constant that every sample's loss obeys.
        m: with |v|² >= 2m F̂_R(w) for every w and every subgradient v of F̂_R there; at most L.
        F0: φ(w_0), or anything above it such as F̂_R(w_0).
        rho: ρ*_R of the exact losses.
        share: p, the least of ρ_approx/ρ over w, where noisy losses select.
    """
    K = step_count(K)
    eta = step_size(eta)
    F0 = mean_loss("F0", F0)
    rho = floats("rho", rho, lambda x: x >= 1, "rho >= 1", "a largest loss is not below the mean")
    L, m_envelope = _pl(L, m)
    p = _share(share)
    change = -eta * m_envelope + 3 * eta * L * (1 - p) + 3 * (eta * L) ** 2
    with np.errstate(over="ignore", invalid="ignore"):
        bound = 1.5 / rho * F0 * np.exp(K * np.log1p(change))
    return unwrap(np.where(F0 > 0, bound, 0.0))


def pl_step_size(L: ArrayLike, m: ArrayLike, *, share: ArrayLike = 1.0) -> FloatOrArray:
    """The step size that makes `pl_bound` fall fastest: (m' - 3L(1 - p))/(6L²).

    >>> pl_step_size(L=4, m=2)
    0.01666...
    >>> pl_step_size(L=4, m=2, share=0.5)
    Traceback (most recent call last):
        ...
    ValueError: share = 0.5 with L = 4 and m = 2, but share > 0.866666666667 must hold: ...

    Args:
        L, m, share: as for `pl_bound`.
    """
    L, m_envelope = _pl(L, m)
    p = _share(share)
    pull = m_envelope - 3 * L * (1 - p)
    if not np.all(pull > 0):
        p_b, L_b, m_b, e_b, pull = np.broadcast_arrays(p, L, np.asarray(m), m_envelope, pull)
        i = np.unravel_index(int(np.argmin(pull)), pull.shape)
        raise ValueError(
            f"share = {p_b[i]:.12g} with L = {L_b[i]:.12g} and m = {m_b[i]:.12g}, but share > "
            f"{1 - e_b[i] / (3 * L_b[i]):.12g} must hold: with more noise no linear rate is proved"
        )
    return unwrap(pull / (6 * L**2))


def quasar_bound(
    K: ArrayLike,
    eta: ArrayLike,
    L: ArrayLike,
    D0: ArrayLike,
    rho: ArrayLike,
    *,
    c: ArrayLike = 1.0,
    Delta: ArrayLike = 0.0,
) -> FloatOrArray:
    """The bound on the mean of E[F(w_0)] … E[F(w_{K-1})] where every loss points at one w*.

    >>> quasar_bound(K=1000, eta=0.01, L=50, D0=2, rho=1.5, c=1, Delta=0.3)  # as `gsgd_bound`
    0.666...
    >>> quasar_bound(K=1000, eta=0.01, L=50, D0=2, rho=1.5, c=0.8)
    0.444...

    (D0²/(2ηK) + cΔ) / (ρ(c - ηL)): the paper's bound, which is c = 1, for losses with
    ⟨∇f(w, x), w - w*⟩ >= c (f(w, x) - f(w*, x)), convex or not. For any rule that picks from the R
    samples, with its own ρ_approx.

    Args:
        K: steps taken, at least 1.
        eta: the constant step size, 0 < η < c/L.
        L: the smoothness constant that every sample's loss obeys.
        D0: distance from the start to w*.
        rho: ρ*_R; or ρ*_{R,approx} where selection sees noisy losses.
        c: how well every gradient points; 1 for convex losses, 2a for a neuron of slopes a to 1.
        Delta: Δ_R at w*; 0 where w* fits every sample.
    """
    K = step_count(K)
    eta, L, c = _aim(eta, L, c)
    D0 = distance("D0", D0)
    rho = loss_ratio(rho)
    Delta = mean_loss("Delta", Delta)
    return unwrap((D0**2 / (2 * eta * K) + c * Delta) / (rho * (c - eta * L)))


def quasar_distance_bound(
    K: ArrayLike,
    eta: ArrayLike,
    L: ArrayLike,
    D0: ArrayLike,
    rho: ArrayLike,
    growth: ArrayLike,
    *,
    c: ArrayLike = 1.0,
) -> FloatOrArray:
    """The bound on E|w_K - w*|² where w* fits every sample and F grows as (m/2)|w - w*|²: linear.

    >>> quasar_distance_bound([100, 1000], eta=0.01, L=50, D0=2, rho=[1, 1], growth=1)
    array([2.42308175, 0.02661587])

    D0² (1 - η(c - ηL)ρm)^K: ρ times as fast as without selection, exact or noisy.

    Args:
        K, eta, L, D0, rho, c: as for `quasar_bound`.
        growth: m, with F(w) >= (m/2)|w - w*|² for every w.
    """
    K = step_count(K)
    eta, L, c = _aim(eta, L, c)
    D0 = distance("D0", D0)
    rho = loss_ratio(rho)
    m = nonnegative("growth", growth, "it is a curvature")
    pull = eta * (c - eta * L) * rho * m
    if not np.all(pull <= 1):
        raise ValueError(
            f"growth = {float(np.max(m)):.12g} with rho = {float(np.max(rho)):.12g}, but "
            "eta (c - eta L) rho growth <= 1 must hold: no loss has all of these constants"
        )
    with np.errstate(divide="ignore"):
        return unwrap(D0**2 * np.exp(K * np.log1p(-pull)))


def _share(share: ArrayLike) -> Floats:
    return floats("share", share, lambda x: (x > 0) & (x <= 1), "0 < share <= 1",
                  "it is what noise leaves of the picked loss")  # fmt: skip


def _pl(L: ArrayLike, m: ArrayLike) -> tuple[Floats, Floats]:
    """L, and the constant m' = 2Lm/(2L + m) that the envelope inherits."""
    L = smoothness(L)
    m = floats("m", m, lambda x: (x > 0) & (x <= L), "0 < m <= L",
               "L-smooth losses of at least 0 have |v|² <= 2L F̂_R")  # fmt: skip
    return L, 2 * L * m / (2 * L + m)


def _aim(eta: ArrayLike, L: ArrayLike, c: ArrayLike) -> tuple[Floats, Floats, Floats]:
    L = smoothness(L)
    c = positive("c", c, "gradients must point towards w* on the whole")
    eta = floats("eta", eta, lambda x: (x > 0) & (x * L < c), "0 < eta < c/L",
                 "take a smaller step")  # fmt: skip
    return eta, L, c
