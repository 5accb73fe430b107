"""Streaming problems on which every assumption of the theorems holds, with their constants exact.

Features lie on a sphere: their length is bounded, so that one L serves every sample, which
Gaussian features would not allow. Legend: D dimension, `...` any leading axes, the same for w and
for the sample.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from sifting.theory._checks import Floats, candidates, deviation, distance, floats, positive, whole
from sifting.theory.sphere import (
    largest_residual_square,
    on_sphere,
    products,
    rho_sphere,
    sphere_coordinate,
)

Batch: TypeAlias = tuple[Floats, ...]


@dataclass(frozen=True)
class Constants:
    """What the theorems ask to know of a problem, and how each number was come by.

    Args:
        L: smoothness that every sample's loss obeys.
        F_star: the minimum of F.
        Delta: Δ_R, the expected largest of R losses at the minimiser.
        rho_star: ρ*_R, the infimum of ρ_R over all w.
        D0: distance from the start to the minimiser.
        L_F: smoothness of F itself, where it is known to be below L.
        convex: whether every sample's loss is convex, without which most bounds do not hold.
        source: for each name, `exact`, or what kind of estimate it is.
    """

    L: float
    F_star: float
    Delta: float
    rho_star: float
    D0: float
    L_F: float | None = None
    convex: bool = True
    source: dict[str, str] = field(
        default_factory=lambda: dict.fromkeys(("F_star", "Delta", "rho_star", "D0"), "exact")
    )


class SimulatedProblem(Protocol):
    """What `simulate` needs: samples, their losses and gradients, and the constants."""

    @property
    def dim(self) -> int:
        """D, the number of parameters."""

    @property
    def start(self) -> Floats:
        """w_0."""

    @property
    def smoothness(self) -> float:
        """L."""

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Batch:
        """Independent samples: arrays whose leading axes are `shape`."""

    def loss(self, w: Floats, batch: Batch) -> Floats:
        """f(w, x) for w of shape (..., D), one for each sample, by broadcasting."""

    def gradient(self, w: Floats, batch: Batch) -> Floats:
        """∇f(w, x), of shape (..., D)."""

    def objective(self, w: Floats) -> Floats:
        """F(w) for w of shape (..., D)."""

    def constants(self, R: int) -> Constants:
        """L, F*, Δ_R, ρ*_R and D_0."""


@dataclass(frozen=True)
class LeastSquares:
    """Linear regression of a stream in which a minority follows another rule than the rest.

    >>> problem = LeastSquares(dim=20, minority=0.1, shift=6, distance=10)
    >>> c = problem.constants(R=4)
    >>> round(c.F_star, 3), round(c.Delta, 3), round(c.rho_star, 3), c.D0
    (1.62, 5.807, 2.409, 10.0)

    f(w, (x, y)) = (xᵀw - y)²/2, with x uniform on an ellipsoid, y = xᵀb + label noise, and b one
    of two vectors, `shift` apart, whose mean, the minimiser of F, is put at 0. Greedy selection
    favours the minority and so ends away from 0: the floor that the paper's theorem allows for.

    Every constant is exact. At any w the residual is r·U with U a coordinate of a uniform point on
    the sphere and r >= 0 independent of it; given U, r² has mean E[r²], so by Jensen's inequality
    E[max of R losses]/E[loss] is least when r is constant, as it becomes far from the minimiser.
    Hence ρ*_R = E[max of R values of U²]/E[U²], whatever the mixture and the label noise.

    Args:
        dim: number of parameters.
        distance: of the start from the minimiser.
        minority: share of the samples that follow the other rule.
        shift: distance between the two rules.
        label_noise: standard deviation of Gaussian noise on y.
        condition: ratio of the largest to the smallest eigenvalue of E[xxᵀ], whose mean is 1.
        active: share of the samples that have a loss; the others' is 0 for every w, as that of
            samples long learnt nearly is.
    """

    dim: int = 20
    distance: float = 30.0
    minority: float = 0.1
    shift: float = 10.0
    label_noise: float = 0.0
    condition: float = 1.0
    active: float = 1.0

    def __post_init__(self) -> None:
        whole("dim", self.dim, 1, "give the number of parameters")
        distance("distance", self.distance)
        floats(
            "minority",
            self.minority,
            lambda x: (x >= 0) & (x <= 0.5),
            "0 <= minority <= 1/2",
            "it is the smaller of two shares",
        )
        distance("shift", self.shift)
        deviation("label_noise", self.label_noise)
        floats(
            "condition",
            self.condition,
            lambda x: x >= 1,
            "condition >= 1",
            "it is a ratio",
        )
        floats(
            "active",
            self.active,
            lambda x: (x > 0) & (x <= 1),
            "0 < active <= 1",
            "it is a share of the samples",
        )

    @property
    def eigenvalues(self) -> Floats:
        """Of E[xxᵀ], which is diagonal; their mean is 1."""
        raw = np.geomspace(self.condition, 1.0, self.dim)
        return np.asarray(raw / raw.mean())

    @property
    def smoothness(self) -> float:
        """L = the largest |x|² there is."""
        return float(self.dim * self.eigenvalues[0])

    @property
    def start(self) -> Floats:
        """`distance` from the minimiser along (1, …, 1), which no rule is special to."""
        return np.full(self.dim, self.distance / np.sqrt(self.dim))

    @property
    def _rules(self) -> tuple[tuple[float, float], ...]:
        """(share, first coordinate of b) of the majority and of the minority."""
        q = self.minority
        return (1 - q, -q * self.shift), (q, (1 - q) * self.shift)

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Batch:
        """Features (..., D) and targets (...)."""
        x = on_sphere(rng, shape, self.dim)
        if self.condition > 1:
            x *= np.sqrt(self.eigenvalues)
        (_, majority), (share, minority) = self._rules
        y = np.where(rng.random(shape) < share, minority, majority) * x[..., 0]
        if self.label_noise > 0:
            y += self.label_noise * rng.standard_normal(shape)
        if self.active < 1:
            some = rng.random(shape) < self.active
            x, y = x * some[..., None], y * some
        return x, y

    def loss(self, w: Floats, batch: Batch) -> Floats:
        """(xᵀw - y)²/2."""
        loss: Floats = self._residual(w, batch) ** 2 / 2
        return loss

    def gradient(self, w: Floats, batch: Batch) -> Floats:
        """(xᵀw - y) x."""
        return self._residual(w, batch)[..., None] * batch[0]

    def objective(self, w: Floats) -> Floats:
        """F(w), exactly."""
        spread = sum(share * b**2 for share, b in self._rules) * self.eigenvalues[0]
        value: Floats = (w**2 @ self.eigenvalues + spread + self.label_noise**2) / 2 * self.active
        return value

    def largest_of(self, R: int, w: ArrayLike) -> float:
        """F̂_R(w) = E[max of R losses at w], exactly (to about 1e-9)."""
        R = int(candidates("R", R))
        w = np.asarray(w, np.float64)
        scales = []
        for _, b in self._rules:
            error = w.copy()
            error[0] -= b
            scales.append(float(np.sqrt(error**2 @ self.eigenvalues)))
        shares = [share * self.active for share, _ in self._rules]
        return largest_residual_square(scales, shares, self.label_noise, self.dim, R) / 2

    def constants(self, R: int) -> Constants:
        """L, F*, Δ_R, ρ*_R and D_0, all exact."""
        origin = np.zeros(self.dim)
        return Constants(
            L=self.smoothness,
            F_star=float(self.objective(origin)),
            Delta=self.largest_of(R, origin),
            rho_star=self._rho_star(R),
            D0=float(self.distance),
            L_F=float(self.eigenvalues[0]) * self.active,
        )

    def _rho_star(self, R: int) -> float:
        if self.active == 1:
            return float(rho_sphere(R, self.dim))
        return largest_residual_square([1.0], [self.active], 0.0, self.dim, R) / self.active

    def _residual(self, w: Floats, batch: Batch) -> Floats:
        x, y = batch
        residual: Floats = products(x, w) - y
        return residual


@dataclass(frozen=True)
class LogisticRegression:
    """Logistic regression of a stream whose labels follow a logistic model: F* > 0.

    >>> c = LogisticRegression(dim=20, signal=3).constants(R=2)
    >>> round(c.F_star, 4), round(c.Delta, 4), c.rho_star, c.D0
    (0.3537, 0.5916, 1.0, 3.0)

    f(w, (x, y)) = log(1 + exp(-y xᵀw)), with x uniform on the sphere of radius √D and
    P(y = 1 | x) = 1/(1 + exp(-signal x_1)). Every constant is exact. ρ*_R is 1, since at w = 0
    all losses are log 2: the strict ρ* > 1 of the paper does not hold here, and what speeds up
    training is the ratio along the path, which `simulate` measures.

    Args:
        dim: number of parameters.
        signal: length of the true parameter vector; the larger, the fewer contradictory labels.
    """

    dim: int = 20
    signal: float = 3.0

    def __post_init__(self) -> None:
        whole("dim", self.dim, 2, "give the number of parameters, two or more")
        positive("signal", self.signal, "without it no label can be predicted and F* is at w = 0")

    @property
    def smoothness(self) -> float:
        """L = |x|²/4."""
        return self.dim / 4

    @property
    def start(self) -> Floats:
        """0, where all losses are log 2."""
        return np.zeros(self.dim)

    def sample(self, rng: np.random.Generator, shape: tuple[int, ...]) -> Batch:
        """Features (..., D) and labels (...), -1 or 1."""
        x = on_sphere(rng, shape, self.dim)
        positive_class = rng.random(shape) < special.expit(self.signal * x[..., 0])
        return x, np.where(positive_class, 1.0, -1.0)

    def loss(self, w: Floats, batch: Batch) -> Floats:
        """log(1 + exp(-y xᵀw))."""
        loss: Floats = np.logaddexp(0.0, -self._margin(w, batch))
        return loss

    def gradient(self, w: Floats, batch: Batch) -> Floats:
        """-y x / (1 + exp(y xᵀw))."""
        x, y = batch
        gradient: Floats = (-y * special.expit(-self._margin(w, batch)))[..., None] * x
        return gradient

    def objective(self, w: Floats) -> Floats:
        """F(w) = E[log 2cosh(|w| x_1 / 2)] - w_1 E[x_1 expit(signal x_1)], by quadrature."""
        x, density = sphere_coordinate(self.dim)
        pull = float((density * x) @ special.expit(self.signal * x))
        half = np.linalg.norm(w, axis=-1)[..., None] * np.abs(x) / 2
        # log(1 + e^s) is log(2 cosh(s/2)) on average, since s is symmetric
        value: Floats = (half + np.log1p(np.exp(-2 * half))) @ density - w[..., 0] * pull
        return value

    def constants(self, R: int) -> Constants:
        """L, F*, Δ_R, ρ*_R and D_0, all exact."""
        R = int(candidates("R", R))
        truth = np.zeros(self.dim)
        truth[0] = self.signal
        return Constants(
            L=self.smoothness,
            F_star=float(self.objective(truth)),
            Delta=self._largest_at_truth(R),
            rho_star=1.0,
            D0=float(self.signal),
            L_F=0.25,  # of E[xxᵀ]/4
        )

    def _margin(self, w: Floats, batch: Batch) -> Floats:
        x, y = batch
        margin: Floats = y * products(x, w)
        return margin

    def _largest_at_truth(self, R: int) -> float:
        """E[max of R losses] = E[loss of the smallest margin]; margins have density 2 q expit."""
        angle = np.linspace(-np.pi / 2, np.pi / 2, 200_001)
        middle = (angle[1:] + angle[:-1]) / 2
        margin = self.signal * np.sqrt(self.dim) * np.sin(middle)
        mass = np.cos(middle) ** (self.dim - 2) * special.expit(margin)
        above = np.append(1 - np.cumsum(mass) / mass.sum(), 0.0).clip(0.0, 1.0)
        above = np.concatenate(([1.0], above[:-1]))
        return float(np.logaddexp(0.0, -margin) @ (above[:-1] ** R - above[1:] ** R))
