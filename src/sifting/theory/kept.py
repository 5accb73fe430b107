"""Selecting only while the kept carry nearly all of the loss: the rule, and what it costs.

Of B candidates a step keeps a set S that carries a share μ >= 1 - ε of their loss, and moves by
what S contributes to their mean gradient, the sum over S divided by B (not by |S|):

    |mean gradient - contribution of S|  <=  √(2L (1 - |S|/B) (1 - μ) F_B)
What this converges to is in `kept_bounds`; proofs: docs/theory.md, "Kept loss".
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from sifting.theory._checks import (
    FloatOrArray,
    Floats,
    deviation,
    floats,
    mean_loss,
    nonnegative,
    smoothness,
    unwrap,
)

LossLaw: TypeAlias = Literal["exponential", "gaussian", "lognormal"]


def safe_ratio(losses: ArrayLike, epsilon: ArrayLike) -> FloatOrArray:
    """The smallest share of the candidates whose losses add up to 1 - ε of all, the largest first.

    >>> safe_ratio([4.0, 3.0, 2.0, 1.0], epsilon=0.1)  # the last carries a tenth
    0.75
    >>> safe_ratio([1.0, 1.0, 1.0, 1.0], epsilon=0.1)  # spread evenly: nothing can go
    1.0
    >>> safe_ratio([[9.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], epsilon=0)
    array([0.25, 0.25])

    At ε = 0 only losses of 0 are dropped, whose gradients are 0 as well. Where all losses are 0
    nothing is left to learn from, and one is kept.

    Args:
        losses: of the candidates, along the last axis; at least 0.
        epsilon: share of the loss that may be dropped, 0 <= ε < 1; broadcasts with the other axes.
    """
    f = nonnegative("losses", losses, "the argument needs losses of at least 0")
    if f.ndim == 0 or f.shape[-1] == 0:
        raise ValueError(f"losses has shape {f.shape}, but its last axis must hold the candidates")
    gone = dropped(np.sort(f, axis=-1), epsilon_share(epsilon))
    return unwrap(np.asarray(1 - gone / f.shape[-1], np.float64))


def dropped(rising: Floats, epsilon: Floats) -> Floats:
    """How many of the smallest losses `safe_ratio` drops, from losses in rising order.

    Summed from the smallest up, so that tiny losses are not lost beside large ones.
    """
    top = rising[..., -1:]
    sums = np.cumsum(rising / np.where(top > 0, top, 1), axis=-1)
    gone: Floats = (sums <= epsilon[..., None] * sums[..., -1:]).sum(-1, dtype=np.float64)
    return np.where(top[..., 0] > 0, gone, rising.shape[-1] - 1.0)


def kept_gradient_gap(
    mu: ArrayLike, L: ArrayLike, F: ArrayLike, *, keep: ArrayLike = 0.0
) -> FloatOrArray:
    """How far the kept's contribution can be from the mean gradient: √(2L (1 - keep)(1 - μ) F).

    >>> kept_gradient_gap(mu=0.98, L=4, F=0.5)
    0.282842...
    >>> kept_gradient_gap(mu=0.98, L=4, F=0.5, keep=0.75)
    0.141421...

    Args:
        mu: share of the candidates' loss that the kept carry, between 0 and 1.
        L: the smoothness constant that every sample's loss obeys.
        F: mean loss of the candidates.
        keep: share of the candidates that is kept; left out, the bound holds for any.
    """
    mu = _share("mu", mu, "it is a share of the loss")
    keep = _share("keep", keep, "it is a share of the candidates")
    L = smoothness(L)
    F = mean_loss("F", F)
    return unwrap(np.sqrt(2 * L * (1 - keep) * (1 - mu) * F))


def kept_loss_speedup(
    R: ArrayLike, noise_scale: ArrayLike, batch_size: ArrayLike, *, epsilon: ArrayLike = 0.0
) -> FloatOrArray:
    """How many times fewer steps than SGD, which trains on as many samples without choosing them.

    >>> kept_loss_speedup(R=2, noise_scale=[1, 100, 10_000], batch_size=32)
    array([1.       , 1.6097561, 1.9936407])
    >>> kept_loss_speedup(R=2, noise_scale=100, batch_size=32, epsilon=[0.001, 0.01])
    array([1.12022873, 0.59770482])

    S max((1 - ε)/N, (1 - ε)²/(√(1 + N/(Rb)) + √(Nε))²) with S = min(N, 1 + N/b): the ratio of the
    two bounds' first terms, each at its best step. At ε = 0 the kept give the gradient of all Rb
    candidates, and this is the gain of an R times larger batch: R where batches are far below the
    noise scale, 1 where they are far above. What is dropped costs as much as it saves once ε is
    about 1/N. For no N and b is it more than ((1 - ε)/(√(1/R) + √ε))², or 1 where that is less.

    Args:
        R: candidates for each that is kept: Rb candidates are scored, b are trained on.
        noise_scale: N = L/L_F, at least 1, which bounds how much a single gradient scatters.
        batch_size: b, the samples trained on.
        epsilon: the share of the loss that is dropped.
    """
    R = floats("R", R, lambda x: x >= 1, "R >= 1", "no more can be kept than are scored")
    N = floats("noise_scale", noise_scale, lambda x: x >= 1, "noise_scale >= 1",
               "it is L/L_F, and a mean of losses that are L-smooth is L-smooth")  # fmt: skip
    b = floats("batch_size", batch_size, lambda x: x >= 1, "batch_size >= 1", "train on a sample")
    eps = epsilon_share(epsilon)
    # N is taken out of every term, so that it may be huge
    root = np.sqrt(1 / N + 1 / (R * b)) + np.sqrt(eps)
    kept = np.maximum(1 - eps, (1 - eps) ** 2 / root**2)
    return unwrap(np.minimum(1.0, 1 / N + 1 / b) * kept)


def kept_share(
    keep: ArrayLike, *, law: LossLaw = "exponential", spread: ArrayLike = 1.0
) -> FloatOrArray:
    """μ: the share of the loss that the top `keep` of many candidates carry, by the losses' law.

    >>> kept_share([0.1, 0.5, 1.0])  # keep (1 - log keep)
    array([0.33025851, 0.84657359, 1.        ])
    >>> kept_share(0.5, law="gaussian"), kept_share(0.5, law="lognormal", spread=2)
    (0.928..., 0.977...)

    Args:
        keep: share of the candidates, between 0 and 1.
        law: of the losses: exponential; gaussian, squares of Gaussian errors; or lognormal.
        spread: standard deviation of the log-loss, where the law is lognormal.
    """
    keep = _share("keep", keep, "it is a share of the candidates")
    if law == "exponential":
        return unwrap(np.where(keep > 0, keep * (1 - np.log(np.where(keep > 0, keep, 1))), 0.0))
    if law == "gaussian":  # |z| > t: all of z² but P(χ²₃ < t²)
        square = 2 * special.erfcinv(keep) ** 2
        return unwrap(np.where(keep > 0, special.chdtrc(3, square), 0.0))
    if law == "lognormal":
        spread = deviation("spread", spread)
        return unwrap(np.asarray(special.ndtr(special.ndtri(keep) + spread), np.float64))
    raise ValueError(f"law = {law!r}, but it must be one of 'exponential', 'gaussian', 'lognormal'")


def epsilon_share(epsilon: ArrayLike) -> Floats:
    """ε as an array, each 0 <= ε < 1."""
    return floats(
        "epsilon", epsilon, lambda x: (x >= 0) & (x < 1), "0 <= epsilon < 1", "a share to drop"
    )


def _share(name: str, value: ArrayLike, fix: str) -> Floats:
    return floats(name, value, lambda x: (x >= 0) & (x <= 1), f"0 <= {name} <= 1", fix)
