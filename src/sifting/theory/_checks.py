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


def unwrap(array: Floats) -> FloatOrArray:
    """A Python float for a result without axes, else the array itself."""
    return float(array) if array.ndim == 0 else array
