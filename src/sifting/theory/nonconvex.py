"""Fitting one neuron to another: losses that are not convex, yet smooth and all fitted by one w*.

The data are finitely many and known, so that F, F̂_R and their Moreau envelope are exact. Legend:
D dimension, n samples of the data, `...` any leading axes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from sifting.theory._checks import (
    Floats,
    candidates,
    distance,
    floats,
    nonnegative,
    positive,
    whole,
)
from sifting.theory.problems import Batch, Constants
from sifting.theory.sphere import on_sphere, products


@dataclass(frozen=True)
class Neuron:
    """f(w, x) = (ψ(xᵀw) - ψ(xᵀw*))²/2 over a set of features, for two activations ψ.

    >>> phase = Neuron(dim=5, link="phase")
    >>> c = phase.constants(R=4)
    >>> c.F_star, c.Delta, c.convex
    (0.0, 0.0, False)
    >>> leaky = Neuron(dim=5, link="leaky", slope=0.5)
    >>> leaky.aim, round(leaky.growth, 3)
    (1.0, 0.208)

    `phase` is phase retrieval by amplitudes, ψ(z) = √(z² + width²): w* and -w* fit alike, and 0 is
    a saddle. `leaky` is ψ(z) = slope z + (1 - slope) tanh z: not convex, but every gradient points
    at w*, and F̂_R obeys a Polyak-Łojasiewicz condition. Both have one L that no sample exceeds:
    with |x|² = D, f'' is at most 1 and at least 1 - ψ*/width for `phase`, and at most
    1 + (4/(3√3)) (1 - slope) |ψ*| in absolute value for `leaky`, each times D.

    Args:
        dim: number of parameters.
        link: the activation.
        slope: least slope of `leaky`, above 0 and at most 1, where f is convex.
        width: of the rounded corner of `phase`; the narrower, the less smooth.
        signal: length of w*.
        distance: of the start from w*, in a random direction.
        samples: of the data set, features uniform on the sphere of radius √D.
        seed: of the data and of the start's direction.
    """

    dim: int = 10
    link: Literal["phase", "leaky"] = "phase"
    slope: float = 0.3
    width: float = 1.0
    signal: float = 1.0
    distance: float = 2.0
    samples: int = 200
    seed: int = 0
    _x_nD: Floats = field(init=False, repr=False, compare=False)
    _y_n: Floats = field(init=False, repr=False, compare=False)
    _truth_D: Floats = field(init=False, repr=False, compare=False)
    _away_D: Floats = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        d = int(whole("dim", self.dim, 1, "give the number of parameters"))
        n = int(whole("samples", self.samples, 1, "give the size of the data set"))
        if self.link not in ("phase", "leaky"):
            raise ValueError(f"link = {self.link!r}, but it must be 'phase' or 'leaky'")
        floats("slope", self.slope, lambda x: (x > 0) & (x <= 1), "0 < slope <= 1", "a least slope")
        positive("width", self.width, "without it the loss has a corner and no L")
        nonnegative("signal", self.signal, "it is a length")
        distance("distance", self.distance)
        rng = np.random.default_rng(self.seed)
        x = on_sphere(rng, (n,), d)
        truth, away = rng.standard_normal((2, d))
        truth *= self.signal / np.linalg.norm(truth)
        object.__setattr__(self, "_x_nD", x)
        object.__setattr__(self, "_truth_D", truth)
        object.__setattr__(self, "_away_D", away / np.linalg.norm(away))
        object.__setattr__(self, "_y_n", self._activate(x @ truth)[0])

    @property
    def start(self) -> Floats:
        """`distance` from w*."""
        return np.asarray(self._truth_D + self.distance * self._away_D)

    @property
    def minimiser(self) -> Floats:
        """w*."""
        return self._truth_D.copy()

    @property
    def smoothness(self) -> float:
        """L, from the largest |ψ*| in the data."""
        top = float(np.abs(self._y_n).max())
        if self.link == "phase":
            return self.dim * max(1.0, top / self.width - 1)
        return float(self.dim * (1 + 4 / (3 * np.sqrt(3)) * (1 - self.slope) * top))

    @property
    def aim(self) -> float:
        """c with ⟨∇f(w, x), w - w*⟩ >= c f(w, x) for every x: 2 slope, for `leaky`."""
        self._leaky("aim")
        return 2 * self.slope

    @property
    def growth(self) -> float:
        """m with F(w) >= (m/2)|w - w*|²: slope² times the least eigenvalue of the features'."""
        self._leaky("growth")
        return (
            self.slope**2 * float(np.linalg.eigvalsh(self._x_nD.T @ self._x_nD)[0]) / (self.samples)
        )

    def pl_constant(self, rho: float = 1.0) -> float:
        """m with |v|² >= 2m F̂_R(w) for every subgradient v: c²ρ/4 times `growth`."""
        return self.aim**2 * rho * self.growth / 4

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Batch:
        """Features (..., D) and targets (...), drawn from the data with replacement."""
        index = rng.integers(self.samples, size=shape)
        return self._x_nD[index], self._y_n[index]

    def loss(self, w: Floats, batch: Batch) -> Floats:
        """(ψ(xᵀw) - y)²/2."""
        x, y = batch
        value: Floats = (self._activate(products(x, w))[0] - y) ** 2 / 2
        return value

    def gradient(self, w: Floats, batch: Batch) -> Floats:
        """(ψ(xᵀw) - y) ψ'(xᵀw) x."""
        x, y = batch
        value, slope = self._activate(products(x, w))
        gradient: Floats = ((value - y) * slope)[..., None] * x
        return gradient

    def losses(self, w: ArrayLike) -> Floats:
        """f(w, x) of all n samples, (..., n)."""
        value, _ = self._activate(np.asarray(w, np.float64) @ self._x_nD.T)
        losses: Floats = (value - self._y_n) ** 2 / 2
        return losses

    def objective(self, w: Floats) -> Floats:
        """F(w), exactly."""
        return np.asarray(self.losses(w).mean(-1))

    def distance_to(self, w: ArrayLike) -> Floats:
        """To the nearest of the minimisers known: w*, and for `phase` -w*."""
        w = np.asarray(w, np.float64)
        near = np.linalg.norm(w - self._truth_D, axis=-1)
        if self.link == "phase":
            near = np.minimum(near, np.linalg.norm(w + self._truth_D, axis=-1))
        return np.asarray(near)

    def largest_of(self, R: int, w: ArrayLike) -> Floats:
        """F̂_R(w) = E[max of R losses], exactly: R draws with replacement from the data."""
        return np.asarray(np.sort(self.losses(w), axis=-1) @ self._top_weights(R))

    def largest_gradient(self, R: int, w: ArrayLike) -> Floats:
        """A subgradient of F̂_R at w of shape (D,): its gradient where no losses tie."""
        value_n, slope_n = self._activate(self._x_nD @ np.asarray(w, np.float64))
        error_n = value_n - self._y_n
        weight_n = np.empty(self.samples)
        weight_n[np.argsort(error_n**2)] = self._top_weights(R)
        return np.asarray((weight_n * error_n * slope_n) @ self._x_nD)

    def envelope(self, R: int, w: ArrayLike) -> tuple[float, float]:
        """φ(w) and |∇φ(w)| of the Moreau envelope of F̂_R with parameter 1/(2L).

        The least of F̂_R(v) + L|v - w|² over v, which is L-strongly convex, by L-BFGS.
        """
        w, L = np.asarray(w, np.float64), self.smoothness

        def value(v: Floats) -> tuple[float, Floats]:
            away = v - w
            total = float(self.largest_of(R, v)) + L * float(away @ away)
            return total, self.largest_gradient(R, v) + 2 * L * away

        found = optimize.minimize(value, w, jac=True, method="L-BFGS-B", options={"gtol": 1e-10})
        return float(found.fun), 2 * L * float(np.linalg.norm(found.x - w))

    def constants(self, R: int) -> Constants:
        """L, F* = Δ_R = 0, D_0, and 1 for ρ*_R, which is never less."""
        candidates("R", R)
        source = {"F_star": "exact", "Delta": "exact", "rho_star": "lower bound", "D0": "exact"}
        return Constants(
            L=self.smoothness,
            F_star=0.0,
            Delta=0.0,
            rho_star=1.0,
            D0=float(self.distance_to(self.start)),
            convex=False,
            source=source,
        )

    def _activate(self, z: Floats) -> tuple[Floats, Floats]:
        """ψ and ψ'."""
        if self.link == "phase":
            value = np.hypot(z, self.width)
            return value, z / value
        bent = np.tanh(z)
        return self.slope * z + (1 - self.slope) * bent, 1 - (1 - self.slope) * bent**2

    def _top_weights(self, R: int) -> Floats:
        R = int(whole("R", R, 1, "draw one or more"))
        share = (np.arange(self.samples + 1) / self.samples) ** R
        return np.diff(share)

    def _leaky(self, name: str) -> None:
        if self.link != "leaky":
            raise ValueError(f"{name} of link = {self.link!r}, but only 'leaky' has one: its "
                             "gradients all point at w*")  # fmt: skip
