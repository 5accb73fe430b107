"""Features uniform on a sphere: the law of one coordinate, and ρ_R of squared linear errors."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from sifting.theory._checks import FloatOrArray, Floats, candidates, unwrap, whole
from sifting.theory._order import mean_of_largest_square, panels


def rho_sphere(R: ArrayLike, dim: ArrayLike) -> FloatOrArray:
    """ρ_R of squared linear errors with features uniform on a sphere in `dim` dimensions.

    >>> rho_sphere(2, dim=[1, 2, 20, 10**6]).round(4)
    array([1.    , 1.4053, 1.6201, 1.6366])

    The limit of large `dim` is `rho_gaussian(R, 0, 1)`; with `dim = 1` all losses are equal.

    Args:
        R: candidates per step.
        dim: number of features.
    """
    R = candidates("R", R)
    dim = whole("dim", dim, 1, "give the number of features")
    pairs = np.broadcast(R, dim)
    values = [
        largest_residual_square([1.0], [1.0], 0.0, int(d), int(r)) if d > 1 else 1.0
        for r, d in pairs
    ]
    return unwrap(np.array(values).reshape(pairs.shape))


def on_sphere(rng: np.random.Generator, shape: tuple[int, ...], dim: int) -> Floats:
    """Points uniform on the sphere of radius √dim, (*shape, dim)."""
    x = rng.standard_normal((*shape, dim))
    x *= np.sqrt(dim / np.einsum("...d,...d->...", x, x))[..., None]
    return x


def products(x: Floats, w: Floats) -> Floats:
    """xᵀw along the last axis, broadcast; one w for a row of samples goes as a matrix product."""
    if x.ndim > 1 and w.ndim > 1 and w.shape[-2] == 1:
        return np.asarray((x @ w.swapaxes(-1, -2))[..., 0])
    return np.asarray(np.einsum("...d,...d->...", x, w))


def sphere_coordinate(dim: int) -> tuple[Floats, Floats]:
    """Nodes and weights of the law of a coordinate √dim sin(angle) of a uniform point."""
    angle, weight = panels([-np.pi / 2, 0.0, np.pi / 2], 12)
    density = weight * np.exp((dim - 2) * np.log(np.cos(angle)))
    return np.sqrt(dim) * np.sin(angle), density / density.sum()


def largest_residual_square(
    scales: list[float], shares: list[float], noise: float, dim: int, R: int
) -> float:
    """E[max of R draws of (c √dim U + noise ξ)²], where c is one of `scales` by `shares`."""
    ends = [c * np.sqrt(dim) for c in scales]
    far = np.sqrt(2 * (np.log(R) + 45)) + 1  # beyond so many standard deviations lies nothing
    if 0 < noise <= 1e-3 * max(ends):  # so little that only its variance shows
        scales = [float(np.hypot(c, noise)) for c in scales]
        ends, noise = [c * np.sqrt(dim) for c in scales], 0.0
    top = min(max(ends), max(scales) * far) + noise * far
    if top == 0:
        return 0.0

    def tail(tau: Floats) -> Floats:
        total = np.zeros_like(tau)
        for share, end in zip(shares, ends, strict=True):
            total += share * _tail(tau, end, noise, dim)
        return total

    kinks = {end + k * 9 * noise for end in ends for k in (-1, 0, 1)}
    edges = sorted({0.0, top, *(k for k in kinks if 0 < k < top)})
    return mean_of_largest_square(tail, edges, R, count=8 if noise else 32)


def _tail(tau: Floats, end: float, noise: float, dim: int) -> Floats:
    """P(|end·U + noise·ξ| > τ), U a coordinate of a uniform point of the unit sphere."""
    if end == 0:
        return np.asarray(special.erfc(tau / (noise * np.sqrt(2))) if noise else 0.0 * tau)
    if noise == 0:
        if dim == 1:
            return np.where(tau < end, 1.0, 0.0)
        x = np.minimum((tau / end) ** 2, 1.0)
        return np.asarray(special.betaincc(0.5, (dim - 1) / 2, x))
    if dim == 1:
        return np.asarray(special.ndtr((end - tau) / noise) + special.ndtr((-end - tau) / noise))
    count = 6 + int(end / noise / 5)  # nodes at about half of the noise from one another
    angle, weight = panels([-np.pi / 2, np.pi / 2], count)
    density = weight * np.exp((dim - 2) * np.log(np.cos(angle)))
    keep = density > 1e-18 * density.max()
    u, density = np.sin(angle[keep]), density[keep] / density.sum()
    tail = np.empty_like(tau)
    for block in np.array_split(np.arange(tau.size), max(1, tau.size * u.size // 2_000_000)):
        tail[block] = 2 * special.ndtr((end * u - tau[block, None]) / noise) @ density
    return tail
