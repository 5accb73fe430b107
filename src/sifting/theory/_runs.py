"""What both simulators share: checkpoints, samples drawn ahead, and a measured course.

Legend: S independent runs, C checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from sifting.theory._checks import Floats, floats, whole
from sifting.theory.problems import Batch, SimulatedProblem

NoiseLaw: TypeAlias = Callable[[np.random.Generator, tuple[int, ...]], Floats]


@dataclass(frozen=True)
class Measured:
    """The loss of every run at the checkpoints.

    Args:
        name: of the rule.
        loss_SC: F at the mean of the first K iterates, of every run.
    """

    name: str
    loss_SC: Floats

    @property
    def mean_C(self) -> Floats:
        """Mean over the runs: the estimate of E[F(mean iterate)] that the bounds are about."""
        return np.asarray(self.loss_SC.mean(0))

    @property
    def error_C(self) -> Floats:
        """Standard error of that mean; NaN for a single run."""
        S = self.loss_SC.shape[0]
        if S == 1:
            return np.full(self.loss_SC.shape[1], np.nan)
        return np.asarray(self.loss_SC.std(0, ddof=1) / np.sqrt(S))

    def band(self, low: float = 0.05, high: float = 0.95) -> tuple[Floats, Floats]:
        """Between which values the runs lie, from quantile `low` to quantile `high`."""
        lower, upper = np.quantile(self.loss_SC, [low, high], axis=0)
        return lower, upper


def checkpoint_steps(checkpoints: int | ArrayLike, K: int) -> Floats:
    """Checked checkpoints, or so many of them evenly in log K."""
    if isinstance(checkpoints, int):
        n = int(whole("checkpoints", checkpoints, 1, "evaluate once or more"))
        steps = np.unique(np.round(np.geomspace(1, K, n))) if n > 1 else np.array([float(K)])
        return np.asarray(steps, np.float64)
    steps = whole("checkpoints", checkpoints, 1, "they are numbers of steps")
    steps = floats(
        "checkpoints", steps, lambda x: x <= K, f"checkpoints <= K = {K}", "run for longer"
    )
    return np.unique(np.atleast_1d(steps))


def drawn_ahead(
    problem: SimulatedProblem,
    shape: tuple[int, ...],
    K: int,
    *,
    seed: int,
    block: int,
    noise: NoiseLaw | None,
    progress: Callable[[int, int], None] | None,
) -> Iterator[tuple[Batch, Floats | None]]:
    """The samples of each of K steps, and noise of the same shape.

    `block` steps are drawn at once, which is part of what a seed reproduces, and a block ahead, on
    another core.
    """
    rng = np.random.default_rng(seed)

    def draw(steps: int) -> tuple[Batch, Floats | None]:
        batch = problem.sample(rng, (steps, *shape))
        return batch, None if noise is None else noise(rng, (steps, *shape))

    with ThreadPoolExecutor(1) as pool:
        ahead = pool.submit(draw, min(block, K))
        for start in range(0, K, block):
            if progress is not None:
                progress(start, K)
            drawn, zeta = ahead.result()
            after = start + block
            if after < K:
                ahead = pool.submit(draw, min(block, K - after))
            for i in range(min(block, K - start)):
                yield tuple(part[i] for part in drawn), None if zeta is None else zeta[i]
    if progress is not None:
        progress(K, K)


def refuse_divergence(L: float, eta: object, *found: Floats) -> None:
    """Raise where what was found is not finite."""
    if not all(np.isfinite(part).all() for part in found):
        raise FloatingPointError(
            f"the runs diverged with eta = {eta}: is L = {L:.6g} really the smoothness of every "
            "sample's loss?"
        )
