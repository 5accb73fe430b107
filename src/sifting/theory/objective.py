"""A problem made of the user's own functions, its constants by Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike
from scipy import optimize

from sifting.theory._checks import Floats, candidates, floats, nonnegative, positive, whole
from sifting.theory._order import mean_of_largest
from sifting.theory.problems import Batch, Constants


@dataclass(frozen=True)
class OwnObjective:
    """Your own convex loss over your own stream, for `simulate`.

    >>> def sample(rng, shape):
    ...     return (rng.uniform(-1, 1, (*shape, 2)),)
    >>> def loss(w, batch):
    ...     return ((w - batch[0]) ** 2).sum(-1)
    >>> def gradient(w, batch):
    ...     return 2 * (w - batch[0])
    >>> problem = OwnObjective(
    ...     start=[3, 0], smoothness=2, sample=sample, loss=loss, gradient=gradient, pool=4096
    ... )
    >>> c = problem.constants(R=2)
    >>> round(c.F_star, 2), round(c.D0, 2), c.source["F_star"]
    (0.67, 3.01, 'Monte Carlo')

    At construction the functions are tried on a few samples: shapes, losses of at least 0, the
    gradient against finite differences, convexity and the smoothness constant.

    Args:
        start: w_0; its length is the dimension.
        smoothness: L, which every sample's loss must obey.
        sample: (rng, shape) -> arrays whose leading axes are `shape`, all drawn from `rng`.
        loss: (w, batch) -> f(w, x), where w has the shape (..., D) and broadcasts.
        gradient: (w, batch) -> ∇f(w, x), of shape (..., D).
        minimiser: w* where it is known; else it is sought on the pool.
        population_loss: F, (..., D) -> (...), where it is known; else the mean over the pool.
        pool: how many samples the Monte Carlo constants are computed from.
        seed: of the pool.
    """

    start: ArrayLike
    smoothness: float
    sample: Callable[[np.random.Generator, tuple[int, ...]], Batch]
    loss: Callable[[Floats, Batch], Floats]
    gradient: Callable[[Floats, Batch], Floats]
    minimiser: ArrayLike | None = None
    population_loss: Callable[[Floats], Floats] | None = None
    pool: int = 20_000
    seed: int = 0
    _batch: Batch = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        start = floats("start", self.start, np.isfinite, "start finite", "give a vector")
        if start.ndim != 1 or not start.size:
            raise ValueError(f"start has shape {start.shape}, but it must be a vector")
        positive("smoothness", self.smoothness, "give the largest curvature of any sample's loss")
        size = int(whole("pool", self.pool, 2, "constants need samples"))
        object.__setattr__(self, "start", start)
        if self.minimiser is not None:
            at = floats("minimiser", self.minimiser, np.isfinite, "minimiser finite", "check it")
            if at.shape != start.shape:
                raise ValueError(f"minimiser has shape {at.shape}, but start has {start.shape}")
            object.__setattr__(self, "minimiser", at)
        object.__setattr__(self, "_batch", self.sample(np.random.default_rng(self.seed), (size,)))
        self._try_functions()

    @property
    def dim(self) -> int:
        """D, the number of parameters."""
        return np.asarray(self.start).size

    def objective(self, w: Floats) -> Floats:
        """F(w): as given, or the mean over the pool."""
        if self.population_loss is not None:
            return self.population_loss(w)
        rows = w.reshape(-1, self.dim)
        means = [float(np.mean(self.loss(row, self._batch))) for row in rows]
        return np.array(means).reshape(w.shape[:-1])

    def constants(self, R: int) -> Constants:
        """F*, Δ_R and D_0 by Monte Carlo, and ρ*_R by search.

        A search finds a ratio that some w has; the infimum may be smaller. So the bound that
        follows from it is not proved, unlike the one that `simulate` computes along the path.
        """
        R = int(candidates("R", R))
        if self.pool < R:
            raise ValueError(f"R = {R}, but R <= pool = {self.pool} must hold: enlarge the pool")
        known = self.minimiser is not None
        w_star = np.asarray(self.minimiser) if self.minimiser is not None else self._minimise()
        losses = self.loss(w_star, self._batch)
        D0 = float(np.linalg.norm(np.asarray(self.start) - w_star))
        return Constants(
            L=float(self.smoothness),
            F_star=float(self.objective(w_star)),
            Delta=float(mean_of_largest(losses, R)),
            rho_star=self._search_rho(R, w_star),
            D0=D0,
            source={
                "F_star": "exact" if known and self.population_loss is not None else "Monte Carlo",
                "Delta": "Monte Carlo",
                "rho_star": "search",
                "D0": "exact" if known else "Monte Carlo",
            },
        )

    def _minimise(self) -> Floats:
        def value(w: Floats) -> float:
            return float(np.mean(self.loss(w, self._batch)))

        def slope(w: Floats) -> Floats:
            return np.asarray(np.mean(self.gradient(w, self._batch), axis=0), np.float64)

        start = np.asarray(self.start, np.float64)
        found = optimize.minimize(value, start, jac=slope, method="L-BFGS-B", tol=1e-12)
        return np.asarray(found.x, np.float64)

    def _search_rho(self, R: int, w_star: Floats) -> float:
        """The least ratio at w*, at the start, along rays, and by a local search from the best."""

        def ratio(w: Floats) -> float:
            losses = self.loss(w, self._batch)
            mean = float(losses.mean())
            return float(mean_of_largest(losses, R)) / mean if mean > 0 else float(R)

        rng = np.random.default_rng(self.seed)
        reach = max(float(np.linalg.norm(np.asarray(self.start) - w_star)), 1e-3)
        rays = rng.standard_normal((24, self.dim))
        rays /= np.linalg.norm(rays, axis=1, keepdims=True)
        lengths = reach * np.geomspace(1e-2, 1e2, 9)
        tried = [w_star, np.asarray(self.start), np.zeros(self.dim)]
        tried += [w_star + length * ray for ray in rays for length in lengths]
        values = [ratio(w) for w in tried]
        best = int(np.argmin(values))
        local = optimize.minimize(
            ratio, tried[best], method="Nelder-Mead", options={"maxfev": 200, "xatol": 1e-6}
        )
        return float(min(values[best], local.fun))

    def _try_functions(self) -> None:
        rng = np.random.default_rng(self.seed + 1)
        n, d = 16, self.dim
        batch = self.sample(rng, (n,))
        if not isinstance(batch, tuple) or any(np.shape(part)[:1] != (n,) for part in batch):
            raise ValueError(
                f"sample(rng, ({n},)) returned {[np.shape(part) for part in batch]}, but it must "
                f"return a tuple of arrays whose first axis is {n}"
            )
        v, w = np.asarray(self.start) + rng.standard_normal((2, n, d))
        at_w, at_v = self.loss(w, batch), self.loss(v, batch)
        slope_w, slope_v = self.gradient(w, batch), self.gradient(v, batch)
        for name, shape, want in (
            ("loss", np.shape(at_w), (n,)),
            ("gradient", np.shape(slope_w), (n, d)),
        ):
            if shape != want:
                raise ValueError(f"{name} returned shape {shape}, but {want} is needed")
        nonnegative("loss", at_w, "the theorems need losses of at least 0")
        step = 1e-6 * rng.standard_normal((n, d))
        rise = self.loss(w + step, batch) - self.loss(w - step, batch)
        said = 2 * (slope_w * step).sum(-1)
        scale = 1e-6 * np.linalg.norm(slope_w, axis=-1) + 1e-9 * (1 + at_w)
        if np.any(np.abs(rise - said) > 0.05 * scale + 1e-4 * np.abs(said)):
            i = int(np.argmax(np.abs(rise - said)))
            raise ValueError(
                f"gradient predicts a change of {said[i]:.6g} where loss changes by {rise[i]:.6g}, "
                "but they must agree: check the gradient"
            )
        tolerance = 1e-9 * (1 + at_v)
        below = at_w + (slope_w * (v - w)).sum(-1) - at_v  # convexity: at most 0
        if np.any(below > tolerance):
            raise ValueError(
                f"loss lies {below.max():.6g} below its own tangent, but it must be convex in w"
            )
        pull = np.linalg.norm(slope_v - slope_w, axis=-1) / np.linalg.norm(v - w, axis=-1)
        if np.any(pull > self.smoothness * (1 + 1e-9)):
            raise ValueError(
                f"smoothness = {self.smoothness:.12g}, but gradients change by {pull.max():.6g} "
                "times the distance: raise it to a constant that no sample exceeds"
            )
