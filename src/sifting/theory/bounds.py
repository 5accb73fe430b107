"""Convergence bounds of greedy SGD and SGD on smooth convex losses, and where they cross.

Both bounds are on E[F(mean of w_0 … w_{K-1})] after K steps of one constant step size:

    GSGD:  D0² / (2 ρ η (1 - ηL) K)  +  Δ / (ρ (1 - ηL))
    SGD:   D0² / (2   η (1 - ηL) K)  +  F* / (1 - ηL)

with ρ = ρ*_R, or ρ*_{R,approx} where the losses that select are noisy. GSGD's first term falls ρ
times as fast; its second term, the floor, is the higher of the two since Δ >= ρ F*.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sifting.theory._checks import (
    FloatOrArray,
    Floats,
    candidates,
    distance,
    floats,
    loss_ratio,
    mean_loss,
    positive,
    smoothness,
    step_count,
    step_size,
    unwrap,
)


def step_size_ok(eta: ArrayLike, L: ArrayLike) -> bool:
    """Whether 0 < η < 1/L holds, which both theorems ask for.

    >>> step_size_ok(0.05, L=10), step_size_ok(0.1, L=10)
    (True, False)

    Args:
        eta: the step size, or an array of them.
        L: the smoothness constant that every sample's loss obeys.
    """
    L = smoothness(L)
    eta = floats("eta", eta, lambda x: np.ones_like(x, dtype=bool), "eta finite", "give a number")
    return bool(np.all((eta > 0) & (eta * L < 1)))


def gsgd_bound(
    K: ArrayLike,
    eta: ArrayLike,
    L: ArrayLike,
    D0: ArrayLike,
    rho: ArrayLike,
    Delta: ArrayLike,
    *,
    R: ArrayLike | None = None,
    F_star: ArrayLike | None = None,
) -> FloatOrArray:
    """The bound on greedy SGD's expected loss after K steps. Arguments broadcast.

    >>> gsgd_bound(K=1000, eta=0.01, L=50, D0=2, rho=1.5, Delta=0.3)
    0.666...
    >>> gsgd_bound(K=[10, 1000], eta=0.01, L=50, D0=2, rho=1.5, Delta=0.3)
    array([27.06666667,  0.66666667])

    Args:
        K: steps taken, at least 1.
        eta: the constant step size, 0 < η < 1/L.
        L: the smoothness constant that every sample's loss obeys.
        D0: distance from the start to the nearest minimiser of F.
        rho: ρ*_R; or ρ*_{R,approx} where selection sees noisy losses, or any lower bound on it.
        Delta: Δ_R, at least the expected largest of R losses at every minimiser of F.
        R: candidates per step; where given, ρ > R is refused, since no maximum of R
            nonnegative losses exceeds R times their mean.
        F_star: the minimum of F; where given, Δ < ρ F* is refused, since ρ*_R <= Δ_R / F*.
    """
    K = step_count(K)
    eta, L = _step_size(eta, L)
    D0 = distance("D0", D0)
    rho, Delta = _rho(rho, R), _delta(Delta)
    if F_star is not None:
        _gap(rho, Delta, F_star)
    return unwrap((D0**2 / (2 * eta * K) + Delta) / (rho * (1 - eta * L)))


def sgd_bound(
    K: ArrayLike, eta: ArrayLike, L: ArrayLike, D0: ArrayLike, F_star: ArrayLike
) -> FloatOrArray:
    """The bound on plain SGD's expected loss after K steps. Arguments broadcast.

    >>> round(sgd_bound(K=1000, eta=0.01, L=50, D0=2, F_star=0.1), 9)
    0.6

    Args:
        K: steps taken, at least 1.
        eta: the constant step size, 0 < η < 1/L.
        L: the smoothness constant that every sample's loss obeys.
        D0: distance from the start to the nearest minimiser of F.
        F_star: the minimum of F.
    """
    K = step_count(K)
    eta, L = _step_size(eta, L)
    D0 = distance("D0", D0)
    F_star = mean_loss("F_star", F_star)
    return unwrap((D0**2 / (2 * eta * K) + F_star) / (1 - eta * L))


def crossover_iterations(
    eta: ArrayLike,
    L: ArrayLike,
    D0: ArrayLike,
    rho: ArrayLike,
    Delta: ArrayLike,
    F_star: ArrayLike,
    *,
    R: ArrayLike | None = None,
) -> FloatOrArray:
    """The number of steps up to which GSGD's bound lies below SGD's.

    >>> crossover_iterations(eta=0.01, L=50, D0=2, rho=1.5, Delta=0.3, F_star=0.1)
    666.666...
    >>> crossover_iterations(eta=0.01, L=50, D0=2, rho=1.5, Delta=0.15, F_star=0.1)
    inf

    It is 0 where GSGD's bound is never strictly ahead (ρ <= 1 or D0 = 0), and infinite where
    Δ = ρ F*, when both have the same floor and GSGD the smaller transient.

    Args:
        eta, L, D0, rho, Delta, R: as for `gsgd_bound`.
        F_star: the minimum of F.
    """
    eta, L = _step_size(eta, L)
    D0 = distance("D0", D0)
    rho, Delta = _rho(rho, R), _delta(Delta)
    eta, D0, rho, gap, _ = np.broadcast_arrays(eta, D0, rho, _gap(rho, Delta, F_star), L)
    ahead = D0**2 * (rho - 1) / (2 * eta)
    with np.errstate(divide="ignore", invalid="ignore"):
        K = np.where(ahead <= 0, 0.0, ahead / gap)
    return unwrap(K)


def crossover_value(
    eta: ArrayLike,
    L: ArrayLike,
    rho: ArrayLike,
    Delta: ArrayLike,
    F_star: ArrayLike,
    *,
    R: ArrayLike | None = None,
) -> FloatOrArray:
    """The loss at which the two bounds meet: GSGD's reaches every larger value first.

    >>> round(crossover_value(eta=0.01, L=50, rho=1.5, Delta=0.3, F_star=0.1), 9)
    0.8
    >>> sgd_bound(K=667, eta=0.01, L=50, D0=2, F_star=0.1)
    0.79970014992503...

    It is infinite where ρ <= 1, when there is no value that GSGD's bound reaches first.

    Args:
        eta, L, rho, Delta, R: as for `gsgd_bound`.
        F_star: the minimum of F.
    """
    eta, L = _step_size(eta, L)
    rho, Delta = _rho(rho, R), _delta(Delta)
    gap = _gap(rho, Delta, F_star)
    eta, L, rho, gap, F = np.broadcast_arrays(eta, L, rho, gap, np.asarray(F_star, np.float64))
    # (Δ - F*) / (ρ - 1), written so that Δ = ρ F* gives F* without rounding
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.where(rho > 1, (F + gap / (rho - 1)) / (1 - eta * L), np.inf)
    return unwrap(value)


def step_speedup(
    value: ArrayLike,
    eta: ArrayLike,
    L: ArrayLike,
    rho: ArrayLike,
    Delta: ArrayLike,
    F_star: ArrayLike,
    *,
    R: ArrayLike | None = None,
) -> FloatOrArray:
    """How many times fewer steps GSGD's bound needs than SGD's to get down to `value`.

    >>> step_speedup([100, 0.8, 0.5], eta=0.01, L=50, rho=1.5, Delta=0.3, F_star=0.1)
    array([1.49699399, 1.        , 0.5       ])

    It is ρ far above the floor, 1 at `crossover_value`, and 0 where GSGD's bound never gets there
    although SGD's does. It never exceeds ρ.

    Args:
        value: the loss to reach; SGD's bound must be able to reach it: value > F*/(1 - ηL).
        eta, L, rho, Delta, R: as for `gsgd_bound`.
        F_star: the minimum of F.
    """
    eta, L = _step_size(eta, L)
    rho, Delta = _rho(rho, R), _delta(Delta)
    gap = _gap(rho, Delta, F_star)
    F = np.asarray(F_star, np.float64)
    value = floats(
        "value",
        value,
        lambda x: x * (1 - eta * L) > F,
        "value > F_star / (1 - eta L)",
        "SGD's own bound never gets below that; ask for a larger value",
    )
    return unwrap(np.maximum(rho - gap / (value * (1 - eta * L) - F), 0.0))


def best_step_size(K: ArrayLike, L: ArrayLike, D0: ArrayLike, floor: ArrayLike) -> FloatOrArray:
    """The step size that makes a bound smallest for K steps: of GSGD with Δ, of SGD with F*.

    >>> eta = best_step_size(K=1000, L=50, D0=2, floor=0.3)
    >>> round(eta, 6)
    0.006667
    >>> gsgd_bound(1000, eta, 50, 2, 1.5, 0.3) < gsgd_bound(1000, 0.01, 50, 2, 1.5, 0.3)
    True

    It does not depend on ρ. For many steps it falls as 1/√K; without a floor it is 1/(2L).

    Args:
        K: steps to be taken.
        L: the smoothness constant that every sample's loss obeys.
        D0: distance from the start to the nearest minimiser; above 0.
        floor: Δ_R for GSGD, F* for SGD.
    """
    K = step_count(K)
    L = smoothness(L)
    D0 = positive("D0", D0, "from the minimiser itself every step makes the bound worse")
    floor = mean_loss("floor", floor)
    a = D0**2 / (2 * K)  # the root of ΔLη² + 2aLη - a = 0, where the derivative vanishes
    return unwrap(a / (a * L + np.sqrt(a * L * (a * L + floor))))


def _step_size(eta: ArrayLike, L: ArrayLike) -> tuple[Floats, Floats]:
    L = smoothness(L)
    eta = step_size(eta)
    if not np.all(eta * L < 1):
        eta_b, L_b = np.broadcast_arrays(eta, L)
        i = np.unravel_index(int(np.argmax(eta_b * L_b)), eta_b.shape)
        raise ValueError(
            f"eta = {eta_b[i]:.12g} with L = {L_b[i]:.12g}, but eta < 1/L = {1 / L_b[i]:.12g} "
            "must hold: take a smaller step"
        )
    return eta, L


def _rho(rho: ArrayLike, R: ArrayLike | None) -> Floats:
    rho = loss_ratio(rho)
    if R is not None:
        limit = candidates("R", R)
        rho = floats(
            "rho",
            rho,
            lambda x: x <= limit,
            "rho <= R",
            "no maximum of R nonnegative losses exceeds R times their mean",
        )
    return rho


def _delta(Delta: ArrayLike) -> Floats:
    return mean_loss("Delta", Delta)


def _gap(rho: Floats, Delta: Floats, F_star: ArrayLike) -> Floats:
    """Δ - ρF*, which cannot be negative; rounding below 0 counts as 0."""
    F = mean_loss("F_star", F_star)
    gap = Delta - rho * F
    slack = 1e-12 * np.maximum(Delta, rho * F)
    if not np.all(gap >= -slack):
        rho, Delta, F, gap = np.broadcast_arrays(rho, Delta, F, gap)
        i = np.unravel_index(int(np.argmin(gap)), gap.shape)
        raise ValueError(
            f"Delta = {Delta[i]:.12g} with rho = {rho[i]:.12g} and F_star = {F[i]:.12g}, but "
            f"Delta >= rho F_star = {rho[i] * F[i]:.12g} must hold, since rho is an infimum that "
            "points near a minimiser are part of: lower rho or raise Delta"
        )
    return np.where(np.abs(gap) <= slack, 0.0, gap)
