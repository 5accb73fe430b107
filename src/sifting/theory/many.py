"""What noisy losses leave of ρ for any number R of candidates, and for the top k of R.

The paper has R = 2. For every R the share p_R(σ) with ρ_{R,approx} >= p ρ_R is at least

    any              max(e^{-σ a}, 1 - (R - 1)(1 - e^{-√2 σ})/2, k/R), a = (n - 1)/√(2n - 1) and
                     n = R - k + 1, for every i.i.d. noise; the middle term for k = 1
    gaussian_lower   the larger of that and e^{-σ e_n}, e_n the mean of the largest of n normal draws
    gaussian         for k = 1 the exact worst case over all losses: one loss against R - 1
                     equal smaller ones, at the worst distance t in log-loss, by quadrature

the last two for Gaussian noise. Proofs: docs/theory.md, "More than two candidates".
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from sifting.theory._checks import (
    FloatOrArray,
    Floats,
    candidates,
    deviation,
    floats,
    kept_of,
    unwrap,
    whole,
)
from sifting.theory.noise import METHODS_TWO, invert, share_left

MethodMany: TypeAlias = Literal["any", "gaussian_lower", "gaussian"]
METHODS = ("any", "gaussian_lower", "gaussian")

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_PANELS = 24
_MOST = 1e12  # candidates: the largest of so many normals is 7.1, and next to never above 10
_Z = (np.linspace(-10, 10, _PANELS + 1)[:-1, None] + (_NODES + 1) * 10 / _PANELS).ravel()
_PHI = np.tile(_WEIGHTS * 10 / _PANELS, _PANELS) * np.exp(-(_Z**2) / 2) / np.sqrt(2 * np.pi)


def p_noise_many(
    sigma: ArrayLike, R: ArrayLike, *, k: ArrayLike = 1, method: MethodMany = "any"
) -> FloatOrArray:
    """A p(σ) for any number R of candidates: ρ_{R,approx} >= p ρ_R, whatever the losses.

    >>> p_noise_many(0.2, R=[2, 4, 64])
    array([0.89094725, 0.79709717, 0.32691038])
    >>> p_noise_many(0.2, R=[2, 4, 64], method="gaussian")
    array([0.95653803, 0.91760748, 0.79246281])
    >>> p_noise_many(0.2, R=64, k=32, method="gaussian_lower")
    0.659...

    With k the top k are kept, and ρ is their mean loss over the candidates'. Never below k/R, since
    i.i.d. noise never makes selection worse than a random one.

    Args:
        sigma: standard deviation of log(approximate loss / loss).
        R: candidates per step.
        k: how many of them are kept; 1 is the paper's argmax.
        method: `any` holds for every i.i.d. noise of variance 1; `gaussian_lower` and `gaussian`
            for Gaussian noise, of which the second is exact, for k = 1 and R up to 1e12.
    """
    sigma = deviation("sigma", sigma)
    R, k = _candidates(R, k)
    return unwrap(_p_many(sigma, R, k, method))


def sigma_max(rho: ArrayLike, *, R: int = 2, k: int = 1, method: str | None = None) -> FloatOrArray:
    """The noise level below which p(σ) ρ_R > 1, so that a speed-up over SGD is proved.

    >>> sigma_max(1.3)
    0.2732...
    >>> sigma_max([1, 1.3, 2], method="symmetric")
    array([0.        , 0.43772682,        inf])
    >>> sigma_max(2.5, R=8), sigma_max(2.5, R=8, method="gaussian")
    (0.50696..., 2.6747...)
    >>> sigma_max(1.7, R=64, k=32)
    0.13...

    The paper's corollary is R = 2. From ρ_2 = 25√e / (18 + 7√e) = 1.3953 on it exceeds the 1/(2√2)
    up to which the paper proves p(σ); it is right there too, because `symmetric` proves more for
    every σ. Above σ_max i.i.d. noise still leaves ρ_approx >= 1.

    Args:
        rho: ρ_R of the exact losses, between 1 and R/k.
        R: candidates per step.
        k: how many of them are kept.
        method: for R = 2 and k = 1 one of `p_noise`'s, by default the paper's; else one of
            `p_noise_many`'s, by default `any`.
    """
    R_array, k_array = _candidates(R, k)
    if R_array.ndim or k_array.ndim:
        raise ValueError(f"R = {R!r} and k = {k!r}, but each must be one number")
    two = R_array == 2 and k_array == 1
    name = "rho_2" if two else "rho"
    rho = floats(
        name,
        rho,
        lambda x: (x >= 1) & (x <= R_array / k_array * (1 + 1e-12)),
        f"1 <= {name} <= {float(R_array / k_array):g}",
        "it is a mean of the largest over a mean of nonnegative losses",
    )
    method = method or ("paper" if two else "any")
    if method in METHODS_TWO and method != "gaussian" and not two:
        raise ValueError(
            f"method = {method!r} with R = {R} and k = {k}, but it is proved for R = 2 and k = 1 "
            f"only: take one of {METHODS}"
        )
    if method == "paper":
        return unwrap(np.log(18 * rho / (25 - 7 * rho)) / np.sqrt(2))
    if method == "symmetric":
        with np.errstate(divide="ignore"):
            return unwrap(np.log(rho / np.maximum(2 - rho, 0.0)) / np.sqrt(2))
    if two and method in METHODS_TWO:
        return unwrap(invert(lambda s: share_left(s, method), 1 / rho))
    return unwrap(_invert_many(rho, R_array, k_array, method))


def normal_max(n: ArrayLike) -> FloatOrArray:
    """e_n: the mean of the largest of n draws of a standard normal law, by quadrature.

    >>> normal_max([2, 3, 1000])  # 1/√π, 3/(2√π), …
    array([0.56418958, 0.84628438, 3.24143577])

    Args:
        n: how many draws.
    """
    n = whole("n", n, 1, "draw once or more")
    # E max = ∫ P(max > u) - P(-max > u) du over u > 0, by parts of neither small nor large numbers
    reach = np.sqrt(2 * (np.log(n) + 45))[..., None]
    u, weight = reach * (_Z + 10) / 20, reach * np.tile(_WEIGHTS / (2 * _PANELS), _PANELS)
    above = -np.expm1(n[..., None] * special.log_ndtr(u))
    below = np.exp(n[..., None] * special.log_ndtr(-u))
    return unwrap(((above - below) * weight).sum(-1))


def _p_many(sigma: Floats, R: Floats, k: Floats, method: str) -> Floats:
    n = R - k + 1
    if method == "any":
        largest = np.exp(-sigma * (n - 1) / np.sqrt(2 * n - 1))
        union = np.where(k == 1, 1 + (R - 1) / 2 * np.expm1(-np.sqrt(2) * sigma), 0.0)
        best: Floats = np.maximum(np.maximum(largest, union), k / R)
        return best
    if method == "gaussian_lower":
        largest = np.exp(-sigma * np.asarray(normal_max(n)))
        return np.asarray(np.maximum(largest, _p_many(sigma, R, k, "any")), np.float64)
    if method == "gaussian":
        if not np.all(k == 1):
            raise ValueError(
                f"method = 'gaussian' with k = {float(np.max(k)):g}, but k = 1 must hold: the "
                "worst case of the top k is not known; 'gaussian_lower' bounds it"
            )
        floats("R", R, lambda x: x <= _MOST, f"R <= {_MOST:g}",
               "beyond that the quadrature does not reach; 'gaussian_lower' bounds it")  # fmt: skip
        return _worst(*np.broadcast_arrays(sigma, R))
    raise ValueError(f"method = {method!r}, but it must be one of {METHODS}")


def _worst(sigma: Floats, R: Floats) -> Floats:
    """min over t of P(the largest is picked) + e^{-t} P(one of R - 1 equal ones, t below in log, is).

    With x = t/σ the wrong one is picked when M - ζ > x, M the largest of R - 1: a law with a
    log-concave density, so that its hazard grows; σ/(e^{σx} - 1) falls, and they meet once.
    """
    s = np.where(sigma > 0, np.clip(sigma, 1e-150, 1e150), 1.0)

    def chances(x: Floats) -> tuple[Floats, Floats, Floats]:
        """Of the right one, of a wrong one, and the density of M - ζ."""
        shifted = _Z + x[..., None]
        others, log_cdf = (R - 1)[..., None], special.log_ndtr(shifted)
        right, wrong = np.exp(others * log_cdf) @ _PHI, -np.expm1(others * log_cdf) @ _PHI
        density = np.exp((others - 1) * log_cdf - shifted**2 / 2) @ _PHI
        return right, wrong, (R - 1) * density / np.sqrt(2 * np.pi)

    low, high = np.full_like(s, -400.0), np.full_like(s, np.log(8.0))  # of log x
    for _ in range(36):  # x to 1e-8, and the maximum to its square
        middle = (low + high) / 2
        _, wrong, density = chances(np.exp(middle))
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            above = density / wrong > s / np.expm1(s * np.exp(middle))
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    x = np.exp((low + high) / 2)
    right, wrong, _ = chances(x)
    return np.where(sigma > 0, right + np.exp(-s * x) * wrong, 1.0)


def _invert_many(rho: Floats, R: Floats, k: Floats, method: str) -> Floats:
    if method == "gaussian":
        ones = np.ones_like(rho)
        return invert(lambda s: _p_many(s, R * ones, k * ones, method), 1 / rho)
    if method not in METHODS:
        raise ValueError(f"method = {method!r}, but it must be one of {METHODS}")
    n = R - k + 1
    pull = (n - 1) / np.sqrt(2 * n - 1) if method == "any" else np.asarray(normal_max(n))
    at = np.where(n > 1, np.log(rho) / np.where(n > 1, pull, 1), 0.0)
    if k == 1:  # the largest of the inverses, since p is the largest of its terms
        with np.errstate(divide="ignore"):
            union = -np.log1p(-np.minimum(2 * (1 - 1 / rho) / (R - 1), 1.0)) / np.sqrt(2)
        at = np.maximum(at, union)
    return np.asarray(at, np.float64)


def _candidates(R: ArrayLike, k: ArrayLike) -> tuple[Floats, Floats]:
    R = candidates("R", R)
    return R, kept_of(k, R)
