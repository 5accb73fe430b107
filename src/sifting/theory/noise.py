"""What selecting by noisy losses f·exp(μ + σζ) costs: lower bounds on ρ_approx / ρ.

With R = 2 candidates of losses f₁ >= f₂ and t = log(f₁/f₂), the wrong one is picked when
ζ₂ - ζ₁ > t/σ, and E[loss picked] = f₁ (1 - (1 - e^{-t}) P(ζ₂ - ζ₁ > t/σ)). Each `method` bounds
that probability, then takes the worst t:

    paper      Cantelli, then the lemma's constant 0.72; for σ <= 1/(2√2)
    cantelli   Cantelli, then the true maximum of h(t; σ); for every σ
    symmetric  ζ₂ - ζ₁ is symmetric because the ζ are i.i.d., so Chebyshev gives
               min(1/2, σ²/t²); its worst case is (1 - e^{-√2 σ})/2, in closed form; for every σ
    gaussian   exact for Gaussian ζ, which the paper does not assume; for every σ

Each is at least as tight as the one above it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from sifting.theory._checks import FloatOrArray, Floats, deviation, floats, nonnegative, unwrap

Method: TypeAlias = Literal["paper", "cantelli", "symmetric", "gaussian"]

METHODS_TWO = ("paper", "cantelli", "symmetric", "gaussian")
SIGMA_LIMIT = 1 / (2 * np.sqrt(2))  # up to which the paper proves its p(σ)


def p_noise(sigma: ArrayLike, *, method: Method = "paper") -> FloatOrArray:
    """p(σ) with ρ_{2,approx} >= p(σ) ρ_2: the share of ρ_2 that noise of level σ leaves.

    >>> p_noise(0.2)
    0.8226...
    >>> p_noise([0, 0.2, 1], method="symmetric")
    array([1.        , 0.87681916, 0.62155837])

    Args:
        sigma: standard deviation of log(approximate loss / loss), at least 0.
        method: which proof, from the loosest to the tightest: `paper` (σ <= 1/(2√2) only),
            `cantelli`, `symmetric`, `gaussian` (for Gaussian noise only).
    """
    return unwrap(share_left(_sigma(sigma), method))


def rho_2_approx_lower(
    rho_2: ArrayLike, sigma: ArrayLike, *, method: Method = "paper"
) -> FloatOrArray:
    """What is left of ρ_2 when losses are noisy: a lower bound on ρ_{2,approx}.

    >>> rho_2_approx_lower(1.6, 0.2)
    1.316...
    >>> rho_2_approx_lower(1.6, 5, method="symmetric")
    1.0

    Below 1 the bounds other than the paper's own say 1: i.i.d. noise picks the larger of two losses
    at least half of the time, so that it never makes selection worse than a random pick.

    Args:
        rho_2: ρ_2 of the exact losses, between 1 and 2.
        sigma: standard deviation of log(approximate loss / loss).
        method: as for `p_noise`.
    """
    lower = _rho_2(rho_2) * share_left(_sigma(sigma), method)
    return unwrap(lower if method == "paper" else np.maximum(lower, 1.0))


def h(t: ArrayLike, sigma: ArrayLike) -> FloatOrArray:
    """The lemma's h(t; σ) = 2(1 - e^{-t}) / (2 + t²/σ²): the share lost at log-ratio t.

    >>> h([0, 0.2, 1], sigma=0.2)
    array([0.        , 0.12084616, 0.04682375])

    Args:
        t: log of the larger over the smaller of two losses, at least 0.
        sigma: standard deviation of log(approximate loss / loss); at 0 nothing is lost.
    """
    t = nonnegative("t", t, "order the two losses so that the larger comes first")
    sigma = _sigma(sigma)
    with np.errstate(divide="ignore", invalid="ignore"):
        share = 1 / (1 + (t / sigma) ** 2 / 2)
    return unwrap(np.where((sigma == 0) | (t == 0), 0.0, -np.expm1(-t) * share))


def h_argmax(sigma: ArrayLike) -> FloatOrArray:
    """The t* at which h(t; σ) is largest: the root of e^t = 1 + σ²/t + t/2.

    >>> t = h_argmax(0.2)
    >>> bool(np.isclose(np.exp(t), 1 + 0.2**2 / t + t / 2, rtol=1e-14))
    True

    t(e^t - 1) - t²/2 grows and is convex for t > 0, so that the root is the only one, and Newton's
    method reaches it from above for every σ.

    Args:
        sigma: standard deviation of log(approximate loss / loss).
    """
    sigma = _sigma(sigma)
    return unwrap(np.sqrt(2) * sigma * _newton_c(sigma))


def h_max(sigma: ArrayLike) -> FloatOrArray:
    """The true maximum of h(t; σ) over t, which the lemma bounds by 0.72 (1 - e^{-√2 σ}).

    >>> h_max([0.01, 0.2])
    array([0.00702148, 0.12418253])
    >>> 0.72 * (1 - np.exp(-np.sqrt(2) * np.array([0.01, 0.2])))
    array([0.01011068, 0.17738041])

    Args:
        sigma: standard deviation of log(approximate loss / loss).
    """
    return unwrap(_h_max(_sigma(sigma)))


def share_left(sigma: Floats, method: str) -> Floats:
    """p(σ) by a method of `p_noise`, for a σ that has been checked."""
    if method == "paper":
        floats(
            "sigma",
            sigma,
            lambda x: x <= SIGMA_LIMIT * (1 + 1e-15),
            f"sigma <= 1/(2 sqrt 2) = {SIGMA_LIMIT:.12g}",
            "the paper proves p(sigma) only there; method='symmetric' holds for every sigma",
        )
        return _one_minus(0.72, sigma)
    if method == "cantelli":
        return 1 - _h_max(sigma)
    if method == "symmetric":
        return _one_minus(0.5, sigma)
    if method == "gaussian":
        return 1 - _gaussian_max(sigma)
    raise ValueError(
        f"method = {method!r}, but it must be one of 'paper', 'cantelli', 'symmetric', 'gaussian'"
    )


def _one_minus(share: float, sigma: Floats) -> Floats:
    p: Floats = 1 + share * np.expm1(-np.sqrt(2) * sigma)
    return p


def _root_two_sigma(sigma: Floats) -> Floats:
    """√2 σ, kept where its square can be told from 0 and from infinity; 1 where σ = 0."""
    return np.where(sigma > 0, np.sqrt(2) * np.clip(sigma, 1e-150, 1e150), 1.0)


def _newton_c(sigma: Floats) -> Floats:
    """c = t*/(√2 σ) in (0, 1], the root of c² ν(√2 σ c) = 1 with ν(t) = 2(e^t - 1)/t - 1.

    In c rather than t so that neither tiny nor huge σ under- or overflows.
    """
    s = _root_two_sigma(sigma)
    c = np.minimum(1.0, (2 * np.log1p(s) + 1) / s)  # on the right of the root
    for _ in range(100):
        growth = np.expm1(c * s)
        value = 2 * c * growth / s - c**2 - 1
        slope = 2 * growth / s + 2 * c * (growth + 1) - 2 * c
        c, before = c - value / slope, c
        if np.all(np.abs(c - before) <= 1e-16 * before):
            break
    return np.where(sigma > 0, c, 1.0)


def _h_max(sigma: Floats) -> Floats:
    c = _newton_c(sigma)
    worst: Floats = -np.expm1(-np.sqrt(2) * sigma * c) / (1 + c**2)
    return worst


def _gaussian_max(sigma: Floats) -> Floats:
    """max over t of (1 - e^{-t}) Q(t / (√2 σ)), where d/dt log vanishes.

    With x = t/(√2 σ) and s = √2 σ, s e^{-sx}/(1 - e^{-sx}) falls in x and the hazard
    φ(x)/Q(x) of the normal law grows, so that they meet once.
    """
    s = _root_two_sigma(sigma)

    def excess(x: Floats) -> Floats:
        with np.errstate(over="ignore", divide="ignore"):
            pull = s / np.expm1(s * x)
        hazard: Floats = np.sqrt(2 / np.pi) / special.erfcx(x / np.sqrt(2))
        return hazard - pull

    low, high = np.full_like(s, -400.0), np.zeros_like(s)  # of log x
    for _ in range(60):  # at x = 1 already, pull < 1 < hazard
        middle = (low + high) / 2
        above = excess(np.exp(middle)) > 0
        low, high = np.where(above, low, middle), np.where(above, middle, high)
    x = np.exp((low + high) / 2)
    worst = -np.expm1(-s * x) * special.erfc(x / np.sqrt(2)) / 2
    return np.where(sigma > 0, worst, 0.0)


def invert(p: Callable[[Floats], Floats], target: Floats) -> Floats:
    """The σ at which the falling p(σ) equals `target`; infinite where it never gets so low."""
    log_low, log_high = np.full_like(target, -40.0), np.full_like(target, 40.0)
    for _ in range(60):
        middle = (log_low + log_high) / 2
        above = p(np.exp(middle)) > target
        log_low, log_high = np.where(above, middle, log_low), np.where(above, log_high, middle)
    sigma = np.exp((log_low + log_high) / 2)
    never = p(np.full_like(target, np.exp(40.0))) >= target - 1e-12
    return np.where(target >= 1, 0.0, np.where(never, np.inf, sigma))


def _sigma(sigma: ArrayLike) -> Floats:
    return deviation("sigma", sigma)


def _rho_2(rho_2: ArrayLike) -> Floats:
    return floats(
        "rho_2",
        rho_2,
        lambda x: (x >= 1) & (x <= 2),
        "1 <= rho_2 <= 2",
        "the larger of two nonnegative losses is between their mean and twice their mean",
    )
