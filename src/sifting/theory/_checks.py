"""Turns what a user typed into float arrays, or says what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats: TypeAlias = NDArray[np.float64]

# A float where every argument is a scalar, a float64 array where one of them is an array: the
# convention of numpy's own ufuncs, which are typed the same way.
FloatOrArray: TypeAlias = Any


def floats(
    name: str,
    value: ArrayLike,
    holds: Callable[[Floats], NDArray[np.bool_]],
    condition: str,
    fix: str,
) -> Floats:
    """`value` as a float64 array, every entry of which is finite and satisfies `holds`.

    >>> floats("eta", 0.1, lambda x: x > 0, "eta > 0", "take a positive step")
    array(0.1)
    >>> floats("eta", [0.1, -1], lambda x: x > 0, "eta > 0", "take a positive step")
    Traceback (most recent call last):
        ...
    ValueError: eta[1] = -1, but eta > 0 must hold: take a positive step
    """
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "fiu":
            raise TypeError
    except (TypeError, ValueError):
        raise TypeError(f"{name} must be a number or an array of numbers, got {value!r}") from None
    array = array.astype(np.float64)
    with np.errstate(invalid="ignore"):
        bad = ~(np.isfinite(array) & holds(array))
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        where = name + (f"[{', '.join(map(str, index))}]" if index else "")
        raise ValueError(f"{where} = {array[index]:.12g}, but {condition} must hold: {fix}")
    return array


def positive(name: str, value: ArrayLike, fix: str) -> Floats:
    """`value`, finite and above 0."""
    return floats(name, value, lambda x: x > 0, f"{name} > 0", fix)


def nonnegative(name: str, value: ArrayLike, fix: str) -> Floats:
    """`value`, finite and at least 0."""
    return floats(name, value, lambda x: x >= 0, f"{name} >= 0", fix)


def whole(name: str, value: ArrayLike, least: int, fix: str) -> Floats:
    """`value`, whole numbers (1e4 counts as one) of at least `least`, as floats."""
    return floats(
        name,
        value,
        lambda x: (x >= least) & (x == np.floor(x)),
        f"{name} whole and {name} >= {least}",
        fix,
    )


def step_count(K: ArrayLike) -> Floats:
    """K, steps taken."""
    return whole("K", K, 1, "count at least one step")


def step_size(eta: ArrayLike) -> Floats:
    """η, above 0."""
    return positive("eta", eta, "take a positive step")


def smoothness(L: ArrayLike) -> Floats:
    """L, above 0."""
    return positive("L", L, "give the smoothness constant of the per-sample losses")


def loss_ratio(rho: ArrayLike) -> Floats:
    """ρ, above 0."""
    return positive("rho", rho, "it is a ratio of mean losses")


def mean_loss(name: str, value: ArrayLike) -> Floats:
    """F*, Δ and the like, at least 0."""
    return nonnegative(name, value, "it is a mean of nonnegative losses")


def distance(name: str, value: ArrayLike) -> Floats:
    """D0 and the like, at least 0."""
    return nonnegative(name, value, "it is a distance")


def deviation(name: str, value: ArrayLike) -> Floats:
    """σ and the like, at least 0."""
    return nonnegative(name, value, "it is a standard deviation")


def candidates(name: str, value: ArrayLike) -> Floats:
    """R or B, at least 2."""
    return whole(name, value, 2, "selection needs two candidates or more")


def kept_of(k: ArrayLike, R: Floats) -> Floats:
    """k, from 1 to R."""
    k = whole("k", k, 1, "keep one or more")
    return floats("k", k, lambda x: x <= R, "k <= R", "no more can be kept than there are")


def unwrap(array: Floats) -> FloatOrArray:
    """A Python float for a result without axes, else the array itself."""
    return float(array) if array.ndim == 0 else array
