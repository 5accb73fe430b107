"""ρ of the top k of R candidates under Gaussian noise, exact for three laws of the loss.

With u = log f̃ = log f + σζ, G its distribution function and N(u) = E[f; u] the loss that has
that score, the mean loss of the kept is (R/k) ∫ N(u) P(at most k - 1 of R - 1 others above u) du,
and the probability is the incomplete beta function I_G(R - k, k). Legend: U nodes of u, Z of ζ.
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
    kept_of,
    unwrap,
    whole,
)
from sifting.theory._order import panels
from sifting.theory.kept import LossLaw

_REACH = 9.0  # standard deviations of ζ


def rho_noisy(
    R: ArrayLike,
    sigma: ArrayLike,
    *,
    k: ArrayLike = 1,
    law: LossLaw = "gaussian",
    spread: float = 1.0,
) -> FloatOrArray:
    """ρ_{R,approx}: mean exact loss of the k of R that look largest, over the mean loss.

    >>> rho_noisy(2, 0)  # squared Gaussian errors, no noise: 1 + 2/π
    1.636619...
    >>> rho_noisy(2, [0, 0.3, 1])
    array([1.63661977, 1.62303595, 1.53124068])
    >>> rho_noisy(64, 0.3, k=32), rho_noisy(64, 0.3, k=1)  # top half of 64 against the largest
    (1.839..., 6.318...)
    >>> rho_noisy(2, 1.0, law="exponential"), rho_noisy(2, 1.0, law="lognormal")
    (1.363..., 1.38...)

    By quadrature, to about 1e-10. Over its value at σ = 0 it is the law's own p(σ), of which
    `p_noise_many` bounds the worst over all laws.

    Args:
        R: candidates per step.
        sigma: standard deviation of the Gaussian noise of the log-loss.
        k: how many of them are kept.
        law: of the losses: `gaussian` squares of Gaussian errors, `exponential`, or `lognormal`.
        spread: standard deviation of the log-loss, where the law is lognormal.
    """
    R = candidates("R", R)
    sigma = floats("sigma", sigma, lambda x: (x >= 0) & (x <= 10), "0 <= sigma <= 10",
                   "beyond that the pick is random but for rounding")  # fmt: skip
    k = kept_of(k, R)
    spread = float(floats("spread", spread, lambda x: (x > 0) & (x <= 5), "0 < spread <= 5",
                          "it is the standard deviation of the log-loss"))  # fmt: skip
    _check_law(law)
    together = np.broadcast(R, sigma, k)
    values = [_rho(int(r), float(s), int(j), law, spread) for r, s, j in together]
    return unwrap(np.array(values).reshape(together.shape))


def sample_rho_noisy(
    R: int,
    sigma: float,
    *,
    k: int = 1,
    law: LossLaw = "gaussian",
    spread: float = 1.0,
    draws: int = 20_000,
    seed: int = 0,
) -> tuple[float, float]:
    """`rho_noisy` by Monte Carlo: the estimate and its standard error.

    >>> value, error = sample_rho_noisy(4, 0.3, draws=50_000)
    >>> abs(value - rho_noisy(4, 0.3)) < 4 * error
    True

    Args:
        R, sigma, k, law, spread: as for `rho_noisy`.
        draws: how many steps of R candidates.
        seed: of the draws.
    """
    R = int(candidates("R", R))
    k = int(kept_of(k, np.asarray(R, np.float64)))
    draws = int(whole("draws", draws, 2, "sample twice or more"))
    sigma = float(deviation("sigma", sigma))
    _check_law(law)
    rng = np.random.default_rng(seed)
    means = []
    for start in range(0, draws, max(1, 2_000_000 // R)):
        n = min(draws - start, max(1, 2_000_000 // R))
        if law == "gaussian":  # each law with a mean loss of 1
            log_f = 2 * np.log(np.abs(rng.standard_normal((n, R))))
        elif law == "exponential":
            log_f = np.log(rng.standard_exponential((n, R)))
        else:
            log_f = spread * rng.standard_normal((n, R)) - spread**2 / 2
        score = log_f + sigma * rng.standard_normal((n, R))
        top = np.argpartition(score, R - k, axis=1)[:, R - k :]
        means.append(np.exp(np.take_along_axis(log_f, top, 1)).mean(1))
    kept = np.concatenate(means)
    return float(kept.mean()), float(kept.std(ddof=1) / np.sqrt(draws))


def _rho(R: int, sigma: float, k: int, law: LossLaw, spread: float) -> float:
    if k == R:
        return 1.0
    if law == "lognormal":  # log f and log f̃ are jointly normal: one integral is enough
        z, weight = panels([-11.0, 0.0, 11.0], 16)
        shift = spread * (spread / np.hypot(spread, sigma))
        chance = special.betainc(R - k, k, special.ndtr(z + shift))
        return float(R / k * (weight * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)) @ chance)
    low, high = _RANGE[law]
    low, high = low - _REACH * sigma, high + _REACH * sigma
    u_U, weight_U = panels([low, high], 16 + int(high - low))
    zeta_Z, mass_Z = np.zeros(1), np.ones(1)
    if sigma > 0:  # the integrand moves by σ per unit of ζ: as many panels as that takes
        zeta_Z, mass_Z = panels([-_REACH, _REACH], 8 + int(5 * sigma))
        mass_Z = mass_Z * np.exp(-(zeta_Z**2) / 2) / np.sqrt(2 * np.pi)
    below_U, loss_U = np.empty_like(u_U), np.empty_like(u_U)
    size = max(1, u_U.size * zeta_Z.size // 500_000)
    for part in np.array_split(np.arange(u_U.size), size):
        cdf, weighted = _log_law(u_U[part, None] - sigma * zeta_Z, law)
        below_U[part], loss_U[part] = cdf @ mass_Z, weighted @ mass_Z
    chance_U = special.betainc(R - k, k, np.clip(below_U, 0.0, 1.0))
    return float(R / k * (weight_U * loss_U) @ chance_U)


# of log f, outside of which there is next to no loss
_RANGE = {"gaussian": (-25.0, 4.6), "exponential": (-19.0, 4.0)}


def _log_law(v: Floats, law: LossLaw) -> tuple[Floats, Floats]:
    """P(log f <= v), and e^v times the density of log f there; the mean loss is 1."""
    v = np.minimum(v, 50.0)
    f = np.exp(v)
    if law == "exponential":
        return -np.expm1(-f), np.exp(2 * v - f)
    return special.erf(np.sqrt(f / 2)), np.exp(1.5 * v - f / 2) / np.sqrt(2 * np.pi)


def _check_law(law: str) -> None:
    if law not in ("exponential", "gaussian", "lognormal"):
        raise ValueError(
            f"law = {law!r}, but it must be one of 'exponential', 'gaussian', 'lognormal'"
        )
