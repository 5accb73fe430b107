"""Expectations of the largest of R draws, from samples and by quadrature."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from sifting.theory._checks import Floats

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(20)


def top_weights(n: int, R: int) -> Floats:
    """For n values in rising order, the share of all R-subsets whose largest is each of them.

    >>> top_weights(4, 2)  # of 6 pairs, 0, 1, 2 and 3 have their maximum there
    array([0.        , 0.16666667, 0.33333333, 0.5       ])
    """
    assert 1 <= R <= n
    # C(i-1, R-1) / C(n, R) by its ratio to the next: no large numbers appear
    i = np.arange(n, 1, -1, dtype=np.float64)
    falling = np.concatenate(([R / n], (R / n) * np.cumprod(np.maximum(i - R, 0) / (i - 1))))
    return falling[::-1].copy()


def mean_of_largest(values: Floats, R: int) -> Floats:
    """The mean of the maximum over all R-subsets of the last axis: unbiased for E[max of R].

    >>> float(mean_of_largest(np.array([3.0, 1.0, 2.0]), 2))  # (3 + 3 + 2) / 3
    2.66666666666666...
    """
    mean: Floats = np.sort(values, axis=-1) @ top_weights(values.shape[-1], R)
    return mean


def panels(edges: Sequence[float], count: int) -> tuple[Floats, Floats]:
    """Nodes and weights of Gauss-Legendre over `count` panels between each pair of edges.

    The panels crowd towards the edges as those of a Chebyshev grid do, and integrands that behave
    like a square root at an edge are smooth in the angle that is integrated over.

    >>> x, w = panels([0, 1], 4)
    >>> round(float(w @ np.sqrt(x)), 12)
    0.666666666667
    """
    nodes, weights = [], []
    for left, right in pairwise(edges):
        angle = np.linspace(0, np.pi, count + 1)
        half = np.pi / count / 2
        theta = (angle[:-1, None] + half * (_NODES + 1)).ravel()
        nodes.append(left + (right - left) * (1 - np.cos(theta)) / 2)
        weights.append(
            np.tile(_WEIGHTS * half, count) * np.sin(theta) * (right - left) / 2,
        )
    return np.concatenate(nodes), np.concatenate(weights)


def mean_of_largest_square(
    tail: Callable[[Floats], Floats], edges: Sequence[float], R: int, *, count: int = 32
) -> float:
    """E[max of R draws of z²] from P(|z| > τ), whose kinks and upper end are `edges`.

    >>> tail = lambda t: np.maximum(1 - t, 0)  # |z| uniform on (0, 1): E[max z²] = R/(R + 2)
    >>> round(mean_of_largest_square(tail, [0, 1], R=3), 12)
    0.6
    """
    tau, weight = panels(edges, count)
    with np.errstate(divide="ignore"):
        some = -np.expm1(R * np.log1p(-np.clip(tail(tau), 0.0, 1.0)))
    return float(weight @ (2 * tau * some))
