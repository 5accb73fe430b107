"""Greedy SGD against SGD with the paper's oracle, many independent runs at once.

Every step draws R candidates x ~ D, sees f̃ = f(w, x)·exp(μ + σζ) for each, and takes the gradient
of one: SGD's is the first (as good as any, since they are i.i.d.), GSGD's has the largest f̃.

Legend: A arms (algorithms), S independent runs, R candidates, D parameters, C checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from sifting.theory._checks import Floats, candidates, deviation, floats, whole
from sifting.theory._runs import (
    Measured,
    NoiseLaw,
    checkpoint_steps,
    drawn_ahead,
    refuse_divergence,
)
from sifting.theory.bounds import crossover_iterations, gsgd_bound, sgd_bound
from sifting.theory.many import p_noise_many
from sifting.theory.problems import Constants, SimulatedProblem

# ζ of mean 0 and variance 1
NOISE_LAWS: dict[str, NoiseLaw] = {
    "gaussian": lambda rng, shape: rng.standard_normal(shape),
    "twopoint": lambda rng, shape: np.where(rng.random(shape) < 0.5, -1.0, 1.0),
    "skewed": lambda rng, shape: rng.standard_exponential(shape) - 1.0,
}
_BLOCK = 64  # steps whose samples are drawn at once; part of what a seed reproduces


@dataclass(frozen=True)
class SimulatedArm(Measured):
    """One algorithm's measured course and its bounds, at the checkpoints.

    Args:
        name: `SGD`, `GSGD`, or `GSGD, noisy`.
        loss_SC: F(mean of the first K iterates), of every run.
        ratio_C: mean loss of the picked over mean loss of the candidates, summed over the first K
            steps and all runs: ρ along the path.
        bound_C: the theorem's bound, with a ρ that holds everywhere.
        path_bound_C: the same with `ratio_C` for ρ, which the proof allows and which can be
            far tighter.
    """

    ratio_C: Floats
    bound_C: Floats
    path_bound_C: Floats


@dataclass(frozen=True)
class Simulation:
    """What `simulate` returns.

    Args:
        steps_C: the checkpoints K.
        arms: by name; `SGD` and `GSGD` always, `GSGD, noisy` where σ > 0.
        constants: of the problem.
        rho: for each greedy arm, the ρ in its bound: ρ*_R, or a proved lower bound on
            ρ*_{R,approx}.
        eta, R, sigma: as asked for.
    """

    steps_C: Floats
    arms: dict[str, SimulatedArm]
    constants: Constants
    rho: dict[str, float]
    eta: float
    R: int
    sigma: float

    def crossover_bound(self, arm: str = "GSGD") -> float:
        """Up to how many steps the arm's bound lies below SGD's: the corollary."""
        c = self.constants
        Delta = max(c.Delta, self.rho[arm] * c.F_star)  # equal but for Monte Carlo error
        return float(crossover_iterations(self.eta, c.L, c.D0, self.rho[arm], Delta, c.F_star))

    def crossover_measured(self, arm: str = "GSGD") -> float:
        """The last checkpoint at which the arm's mean loss is the lower; 0 if it never is.

        Infinite if it still is at the last one: then SGD has not overtaken yet.
        """
        ahead_C = self.arms[arm].mean_C < self.arms["SGD"].mean_C
        if not ahead_C.any():
            return 0.0
        last = int(np.flatnonzero(ahead_C)[-1])
        return float("inf") if last == ahead_C.size - 1 else float(self.steps_C[last])


def simulate(
    problem: SimulatedProblem,
    *,
    K: int = 10_000,
    R: int = 2,
    eta: float | None = None,
    sigma: float = 0.0,
    mu: float = 0.0,
    noise: Literal["gaussian", "twopoint", "skewed"] | NoiseLaw = "gaussian",
    runs: int = 200,
    checkpoints: int | ArrayLike = 60,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Simulation:
    """Run SGD, GSGD and, where σ > 0, GSGD on noisy losses; return their courses and bounds.

    >>> from sifting.theory import LeastSquares
    >>> s = simulate(LeastSquares(dim=4), K=400, R=4, runs=50)
    >>> early, late = 20, -1
    >>> bool(s.arms["GSGD"].mean_C[early] < s.arms["SGD"].mean_C[early])
    True
    >>> bool(s.arms["GSGD"].mean_C[late] > s.arms["SGD"].mean_C[late])
    True
    >>> all(bool((arm.mean_C <= arm.bound_C).all()) for arm in s.arms.values())
    True

    The arms share their candidates, so that differences between them are not differences of luck.
    The same arguments give the same numbers, bit for bit.

    Args:
        problem: `LeastSquares`, `LogisticRegression`, or your own as an `OwnObjective`.
        K: steps to run.
        R: candidates at each step.
        eta: step size, below 1/L; 1/(2L) where not given.
        sigma: noise level of the losses that the third arm selects by.
        mu: their common log-scale. It cancels in the choice.
        noise: law of ζ, of mean 0 and variance 1: a name, or a function (rng, shape) -> draws.
        runs: independent repetitions.
        checkpoints: at how many K to evaluate, evenly in log K; or the K themselves.
        seed: of the generator.
        progress: called with (steps done, K) every few steps.
    """
    K = int(whole("K", K, 1, "run one step or more"))
    R = int(candidates("R", R))
    S = int(whole("runs", runs, 1, "run once or more"))
    sigma = float(deviation("sigma", sigma))
    mu = float(floats("mu", mu, np.isfinite, "mu finite", "it is a log-scale"))
    step = 1 / (2 * problem.smoothness) if eta is None else eta
    sgd_bound(1, step, problem.smoothness, 0.0, 0.0)  # refuses a step size that is out of range
    step = float(step)
    steps_C = checkpoint_steps(checkpoints, K)
    law = NOISE_LAWS.get(noise) if isinstance(noise, str) else noise
    if law is None:
        raise ValueError(f"noise = {noise!r}, but it must be one of {sorted(NOISE_LAWS)}")

    names = ["SGD", "GSGD"] + (["GSGD, noisy"] if sigma > 0 else [])
    A, D = len(names), problem.dim
    w_ASD = np.broadcast_to(problem.start, (A, S, D)).copy()
    sum_ASD = np.zeros((A, S, D))
    picked_A, seen_A = np.zeros(A), np.zeros(A)
    loss_ASC = np.empty((A, S, steps_C.size))
    ratio_AC = np.empty((A, steps_C.size))
    choice_AS = np.zeros((A, S), np.intp)
    arm_A1, run_S = np.arange(A)[:, None], np.arange(S)
    due = {int(k): i for i, k in enumerate(steps_C)}

    drawn = drawn_ahead(
        problem, (S, R), K, seed=seed, block=_BLOCK, noise=law if sigma > 0 else None,
        progress=progress,
    )  # fmt: skip
    for k, (batch_SR, zeta_SR) in enumerate(drawn):
        exact_ASR = problem.loss(w_ASD[:, :, None, :], batch_SR)
        choice_AS[1] = exact_ASR[1].argmax(-1)
        if zeta_SR is not None:  # the largest f̃, by its logarithm, which cannot overflow
            with np.errstate(divide="ignore"):
                log_f_SR = np.log(exact_ASR[2])
            choice_AS[2] = (log_f_SR + (mu + sigma * zeta_SR)).argmax(-1)
        sum_ASD += w_ASD
        picked_A += exact_ASR[arm_A1, run_S, choice_AS].mean(-1)
        seen_A += exact_ASR.mean((-1, -2))
        w_ASD -= step * problem.gradient(w_ASD, tuple(p[run_S, choice_AS] for p in batch_SR))
        if k + 1 in due:
            loss_ASC[:, :, due[k + 1]] = problem.objective(sum_ASD / (k + 1))
            seen = seen_A > 0  # without any loss there is nothing to gain or to lose
            ratio_AC[:, due[k + 1]] = np.where(seen, picked_A / np.where(seen, seen_A, 1), 1)
    refuse_divergence(problem.smoothness, f"{step:.6g}", loss_ASC)
    return _with_bounds(problem, names, steps_C, loss_ASC, ratio_AC, step, R, sigma)


def _with_bounds(
    problem: SimulatedProblem,
    names: list[str],
    steps_C: Floats,
    loss_ASC: Floats,
    ratio_AC: Floats,
    eta: float,
    R: int,
    sigma: float,
) -> Simulation:
    c = problem.constants(R)
    # ρ_approx >= p(σ) ρ, and >= 1 since i.i.d. noise never makes selection worse than random
    rho = {
        "GSGD": c.rho_star,
        "GSGD, noisy": max(1.0, float(p_noise_many(sigma, R)) * c.rho_star),
    }
    arms = {}
    for i, name in enumerate(names):
        if name == "SGD":
            bound_C = path_C = np.asarray(sgd_bound(steps_C, eta, c.L, c.D0, c.F_star))
        else:
            bound_C = np.asarray(gsgd_bound(steps_C, eta, c.L, c.D0, rho[name], c.Delta))
            path_C = np.asarray(gsgd_bound(steps_C, eta, c.L, c.D0, ratio_AC[i], c.Delta))
        arms[name] = SimulatedArm(name, loss_ASC[i], ratio_AC[i], bound_C, path_C)
    rho = {name: value for name, value in rho.items() if name in arms}
    return Simulation(steps_C, arms, c, rho, eta, R, sigma)
