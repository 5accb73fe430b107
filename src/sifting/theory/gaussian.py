"""ρ_R where the prediction errors are N(ε, δ²) and the loss is their square.

ρ_R = E[max of R squared errors] / E[squared error]: the paper's lower bound, and the exact value.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from sifting.theory._checks import (
    FloatOrArray,
    Floats,
    candidates,
    deviation,
    floats,
    unwrap,
)

# 20-point Gauss-Legendre on each of 48 panels: ample for integrands as smooth as these
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)
_PANELS = 48


def nu(R: ArrayLike) -> FloatOrArray:
    """ν(R) = √((π/2) log(R / (4 log R))), defined where R >= 4 log R: whole R of 9 or more.

    >>> nu([9, 100])
    array([0.193..., 1.630...])
    >>> nu(8)
    Traceback (most recent call last):
        ...
    ValueError: R = 8, but R >= 4 log R must hold: take R of 9 or more, or `rho_gaussian`, ...

    Args:
        R: candidates per step.
    """
    R = candidates("R", R)
    R = floats(
        "R",
        R,
        lambda x: x >= 4 * np.log(x),
        "R >= 4 log R",
        "take R of 9 or more, or `rho_gaussian`, which is exact from 2 on",
    )
    return unwrap(np.sqrt(np.pi / 2 * np.log(R / (4 * np.log(R)))))


def rho_gaussian_lower(R: ArrayLike, eps: ArrayLike, delta: ArrayLike) -> FloatOrArray:
    """The paper's lower bound on ρ_R: (|ε| + ν(R) δ)² (1 - 1/R) / (ε² + δ²), for R >= 9.

    >>> rho_gaussian_lower(R=100, eps=0, delta=1), rho_gaussian(R=100, eps=0, delta=1)
    (2.6307..., 7.7058...)

    The paper writes ε; with its sign turned the errors have the same squares, so that |ε| holds
    for either sign and is the tighter of the two where ε < 0.

    Args:
        R: candidates per step, 9 or more.
        eps: mean ε of the errors.
        delta: standard deviation δ of the errors.
    """
    nu_R = np.asarray(nu(R), np.float64)
    eps, delta = _error_law(eps, delta)
    ratio = (np.abs(eps) + nu_R * delta) / np.hypot(eps, delta)
    return unwrap(ratio**2 * (1 - 1 / np.asarray(R, np.float64)))


def rho_gaussian(R: ArrayLike, eps: ArrayLike, delta: ArrayLike) -> FloatOrArray:
    """The exact ρ_R for Gaussian errors, by quadrature, for any R >= 2.

    >>> rho_gaussian(R=2, eps=0, delta=1)  # 1 + 2/π
    1.6366197723675...
    >>> rho_gaussian(R=[2, 9, 10**6], eps=1, delta=0.5)
    array([1.45157238, 2.50053577, 9.43217364])

    Accurate to about 1e-12. It falls to 1 as |ε|/δ grows, and grows as 2 log R where ε = 0.

    Args:
        R: candidates per step.
        eps: mean ε of the errors, of either sign.
        delta: standard deviation δ of the errors; at 0 all losses are equal and ρ_R = 1.
    """
    R = candidates("R", R)
    eps, delta = _error_law(eps, delta)
    R, eps, delta = np.broadcast_arrays(R, np.abs(eps), delta)
    flat = delta <= 1e-150 * eps
    a = np.where(flat, 0.0, eps / np.where(flat, np.inf, delta))
    # E[max Z²] = ∫ 2u P(some |Z_i| > u) du, which is 2u up to `start` and 0 beyond `stop`
    start = np.maximum(a - 10, 0.0)
    stop = a + np.sqrt(2 * (np.log(R) + 45)) + 1
    width = (stop - start) / _PANELS
    left = start[..., None, None] + width[..., None, None] * np.arange(_PANELS)[:, None]
    u = left + width[..., None, None] * (_NODES + 1) / 2
    centre = a[..., None, None]
    tail = special.ndtr(centre - u) + special.ndtr(-centre - u)
    with np.errstate(divide="ignore"):
        some = -np.expm1(R[..., None, None] * np.log1p(-np.minimum(tail, 1.0)))
    scale = 1 + a**2
    inner = (2 * (u / np.sqrt(scale)[..., None, None]) * some * _WEIGHTS).sum((-1, -2))
    inner *= width / 2 / np.sqrt(scale)
    return unwrap(np.where(flat, 1.0, (start / np.sqrt(scale)) ** 2 + inner))


def _error_law(eps: ArrayLike, delta: ArrayLike) -> tuple[Floats, Floats]:
    eps = floats("eps", eps, np.isfinite, "eps finite", "it is the mean of the errors")
    delta = deviation("delta", delta)
    if not np.all((eps != 0) | (delta > 0)):
        raise ValueError(
            "eps = 0 with delta = 0, but eps² + delta² > 0 must hold: without any error "
            "every loss is 0 and ρ = 0/0 is undefined"
        )
    return eps, delta
