"""Bounds of SGD whose kept carry nearly all of the loss, for constant and for decaying steps.

    E[F(mean iterate)]  <=  (D0² / (2ηK) + F*) / s,    s = max((1 - ε)(1 - ηL), 1 - ε - ηΛ)
    Λ  =  (√(L_F + L/B) + √(Lε))²

so that the floor is F*/(1 - ε) at most, where GSGD's is Δ/ρ, and there is none where ε falls to 0
or where F* = 0. Proofs: docs/theory.md, "Kept loss".
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
    smoothness,
    step_count,
    step_size,
    unwrap,
    whole,
)
from sifting.theory.kept import epsilon_share


def kept_loss_bound(
    K: ArrayLike,
    eta: ArrayLike,
    L: ArrayLike,
    D0: ArrayLike,
    F_star: ArrayLike,
    epsilon: ArrayLike,
    *,
    B: ArrayLike | None = None,
    L_F: ArrayLike | None = None,
    per_loss: ArrayLike | None = None,
) -> FloatOrArray:
    """The bound on E[F(mean of w_0 … w_{K-1})] of SGD whose kept carry 1 - ε of the loss.

    >>> kept_loss_bound(K=1000, eta=0.01, L=50, D0=2, F_star=0.1, epsilon=0.05)
    0.631578...
    >>> kept_loss_bound(K=1000, eta=0.05, L=50, D0=2, F_star=0.1, epsilon=0.001, B=64, L_F=2)
    0.170701...

    With ε = 0 it is SGD's own bound, and with B and L_F that of SGD with batches of B, whose step
    may be the longer the larger B is.

    Args:
        K: steps taken, at least 1.
        eta: the constant step size; the factor s of the module's docstring must stay above 0,
            for which η < 1/L is enough.
        L: the smoothness constant that every sample's loss obeys.
        D0: distance from the start to the nearest minimiser of F.
        F_star: the minimum of F.
        epsilon: the share of the candidates' loss that a step may drop, at most.
        B: candidates of a step, i.i.d.; needed for steps beyond 1/L.
        L_F: smoothness of F itself; left out, L.
        per_loss: c, where ε is the smaller of `epsilon` and c F(w): an ε that shrinks with
            the loss, whose floor is about F* + cF*².
    """
    K = step_count(K)
    D0 = distance("D0", D0)
    F = mean_loss("F_star", F_star)
    slack = np.asarray(kept_slack(eta, L, epsilon, B=B, L_F=L_F))
    eta = np.asarray(eta, np.float64)
    start = D0**2 / (2 * eta * K)
    fixed = (start + F) / slack
    if per_loss is None:
        return unwrap(fixed)
    c = nonnegative("per_loss", per_loss, "it is ε over the loss")
    room, noise = _per_loss_room(eta, np.asarray(L, np.float64), epsilon, c, F)
    with np.errstate(divide="ignore", invalid="ignore"):
        shrinking = np.where(room > 0, F + (start + noise) / room, np.inf)
    return unwrap(np.minimum(fixed, shrinking))


def kept_loss_floor(
    F_star: ArrayLike,
    epsilon: ArrayLike,
    *,
    eta: ArrayLike = 0.0,
    L: ArrayLike = 1.0,
    per_loss: ArrayLike | None = None,
) -> FloatOrArray:
    """What `kept_loss_bound` tends to as K grows; with the default η = 0, as the step falls too.

    >>> kept_loss_floor(0.1, epsilon=[0, 0.05, 0.5])
    array([0.1       , 0.10526316, 0.2       ])
    >>> kept_loss_floor(0.1, epsilon=0.05, per_loss=0.1)  # ε = min(0.05, F/10)
    0.10106...
    >>> kept_loss_floor(0, epsilon=0.5)  # where a perfect fit exists there is no floor
    0.0

    Args:
        F_star: the minimum of F.
        epsilon: the share of the loss that a step may drop.
        eta: the constant step size, 0 <= η < 1/L; 0 is the limit of steps that fall.
        L: the smoothness constant that every sample's loss obeys.
        per_loss: as for `kept_loss_bound`.
    """
    F = mean_loss("F_star", F_star)
    L = smoothness(L)
    eta = floats("eta", eta, lambda x: (x >= 0) & (x * L < 1), "0 <= eta < 1/L", "smaller steps")
    fixed = F / ((1 - epsilon_share(epsilon)) * (1 - eta * L))
    if per_loss is None:
        return unwrap(fixed)
    c = nonnegative("per_loss", per_loss, "it is ε over the loss")
    room, noise = _per_loss_room(eta, L, epsilon, c, F)
    with np.errstate(divide="ignore", invalid="ignore"):
        shrinking = np.where(room > 0, F + noise / room, np.inf)
    return unwrap(np.minimum(fixed, shrinking))


def decaying_bound(
    eta: ArrayLike,
    L: ArrayLike,
    D0: ArrayLike,
    floor: ArrayLike,
    *,
    epsilon: ArrayLike = 0.0,
    rho: ArrayLike = 1.0,
    B: ArrayLike | None = None,
    L_F: ArrayLike | None = None,
) -> Floats:
    """The bounds for a sequence of steps, after each of them: (D0²/2 + floor Σ η) / (ρ Σ η s).

    >>> k = np.arange(1, 10_001)
    >>> kept = decaying_bound(0.01 / np.sqrt(k), 50, 2, 0.1, epsilon=0.5 / np.sqrt(k))
    >>> fixed = decaying_bound(0.01 / np.sqrt(k), 50, 2, 0.1, epsilon=0.5)
    >>> round(float(kept[-1]), 3), round(float(fixed[-1]), 3)
    (1.161, 2.271)

    On F at the mean of w_0 … w_{K-1} with weights η_k s_k. SGD has ε = 0, ρ = 1 and the floor F*;
    the kept loss its ε and F*; GSGD ε = 0, its ρ and the floor Δ. Steps with Σ η = ∞ and
    Σ η² < ∞, or η ~ 1/√k, take SGD to F*, GSGD to Δ/ρ, and the kept loss to F*/(1 - ε), which is
    F* where ε falls to 0.

    Args:
        eta: the step sizes in their order, each as for `kept_loss_bound`.
        L, D0: as for `kept_loss_bound`.
        floor: F*, or Δ for GSGD.
        epsilon: one ε, or one for each step, set beforehand.
        rho: ρ*_R for GSGD.
        B, L_F: as for `kept_loss_bound`.
    """
    D0 = distance("D0", D0)
    floor = mean_loss("floor", floor)
    rho = loss_ratio(rho)
    slack = np.asarray(kept_slack(eta, L, epsilon, B=B, L_F=L_F))
    eta = np.atleast_1d(np.asarray(eta, np.float64))
    if eta.ndim != 1:
        raise ValueError(f"eta has shape {eta.shape}, but it must be one sequence of steps")
    top: Floats = D0**2 / 2 + floor * np.cumsum(eta)
    bound: Floats = top / (rho * np.cumsum(eta * slack))
    return bound


def kept_slack(
    eta: ArrayLike,
    L: ArrayLike,
    epsilon: ArrayLike,
    *,
    B: ArrayLike | None = None,
    L_F: ArrayLike | None = None,
) -> FloatOrArray:
    """The factor s of the bounds, above 0, or a refusal that names the longest step.

    >>> kept_slack(0.01, L=50, epsilon=0.05)
    0.475
    >>> kept_slack(0.03, L=50, epsilon=0.05)
    Traceback (most recent call last):
        ...
    ValueError: eta = 0.03 with L = 50 and epsilon = 0.05, but eta < 0.02 must hold: ...

    Args:
        eta, L, epsilon, B, L_F: as for `kept_loss_bound`.
    """
    eta = step_size(eta)
    eps = epsilon_share(epsilon)
    L = smoothness(L)
    Lambda = kept_smoothness(L, eps, B=B, L_F=L_F) if B is not None else L
    slack = np.maximum((1 - eps) * (1 - eta * L), 1 - eps - eta * Lambda)
    if not np.all(slack > 0):
        e, s, g, lam = np.broadcast_arrays(eta, L, eps, Lambda)
        i = np.unravel_index(int(np.argmin(slack)), e.shape)
        limit = max(1 / s[i], (1 - g[i]) / lam[i])
        raise ValueError(
            f"eta = {e[i]:.12g} with L = {s[i]:.12g} and epsilon = {g[i]:.12g}, but eta < "
            f"{limit:.12g} must hold: take a smaller step"
        )
    return unwrap(np.asarray(slack))


def kept_smoothness(
    L: ArrayLike, epsilon: ArrayLike, *, B: ArrayLike | None, L_F: ArrayLike | None = None
) -> FloatOrArray:
    """Λ = (√(L_F + L/B) + √(Lε))², with E|step direction|² <= 2ΛF: what limits the step size.

    >>> kept_smoothness(L=20, epsilon=0, B=16, L_F=1)
    2.25

    Half of (1 - ε)/Λ is the step that is best far above the floor.

    Args:
        L, epsilon, B, L_F: as for `kept_loss_bound`.
    """
    L = smoothness(L)
    eps = epsilon_share(epsilon)
    B = whole("B", 1 if B is None else B, 1, "count the candidates of a step")
    L_F = floats("L_F", L if L_F is None else L_F, lambda x: (x > 0) & (x <= L * (1 + 1e-12)),
                 "0 < L_F <= L", "F is a mean of losses that are L-smooth")  # fmt: skip
    return unwrap((np.sqrt(L_F + L / B) + np.sqrt(L * eps)) ** 2)


def _per_loss_room(
    eta: Floats, L: Floats, epsilon: ArrayLike, c: Floats, F: Floats
) -> tuple[Floats, Floats]:
    """(1 - ηL)(1 - ε - cF*) and ηLF* + (1 - ηL)cF*²: what divides, and what stays."""
    left = 1 - eta * L
    rest = 1 - epsilon_share(epsilon) - c * F
    room = np.where((left > 0) & (rest > 0), left * rest, 0.0)  # 0: nothing is proved
    return room, eta * L * F + left * c * F**2
