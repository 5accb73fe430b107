"""The kept-loss rule beside GSGD and SGD: the same candidates, each arm with its own step.

Every step draws B candidates. SGD trains on b of them at random, GSGD on the b with the largest
(noisy) losses, each on the mean gradient; `kept` on as many of the largest as carry 1 - ε of the
loss, by what they contribute to the mean gradient of all B.

Legend: S independent runs, B candidates, D parameters, C checkpoints, K steps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sifting.theory._checks import Floats, candidates, deviation, floats, nonnegative, whole
from sifting.theory._rules import ARMS, RulePlan, walk
from sifting.theory._runs import Measured, checkpoint_steps, refuse_divergence
from sifting.theory.kept import epsilon_share
from sifting.theory.kept_bounds import decaying_bound, kept_loss_bound, kept_slack
from sifting.theory.problems import Constants, SimulatedProblem


@dataclass(frozen=True)
class Course(Measured):
    """What one arm did, at the checkpoints.

    Args:
        name: `SGD`, `GSGD` or `kept`.
        loss_SC: F at the weighted mean of the first K iterates, of every run.
        eta: its step size at the first step.
        last_CSD: the iterate w_K itself.
        gradients_C: gradients computed up to there, mean of the runs.
        keep_C: share of the candidates trained on, over the steps since the checkpoint before in
            which there was a loss to learn from; NaN where there was none.
        ratio_C: loss that the trained-on carry over the loss of the candidates, summed over the
            first K steps, with the weights of the mean iterate, and all runs: μ for `kept`; ρ, a
            ratio of means, for the others.
        bound_C: the theorem's bound on the mean of `loss_SC`; NaN where it does not apply.
    """

    eta: float
    last_CSD: Floats
    gradients_C: Floats
    keep_C: Floats
    ratio_C: Floats
    bound_C: Floats


@dataclass(frozen=True)
class RuleComparison:
    """What `compare_rules` returns: the checkpoints, the arms by name, and what was asked for.

    Attributes:
        steps_C: steps at each checkpoint.
        arms: the course of each rule, by its name.
        constants: of the problem.
        B: candidates of a step.
        b: samples that a step is made of.
        epsilon: share of the loss that may be dropped.
    """

    steps_C: Floats
    arms: dict[str, Course]
    constants: Constants
    B: int
    b: int
    epsilon: float

    def ahead(self, by: Literal["gradients", "steps"] = "gradients") -> list[tuple[float, str]]:
        """Which arm has the lowest mean loss for what it costs: (from so many on, its name).

        By gradients, losses are compared where every arm has a measurement, along the log. Empty
        where the arms are never apart.
        """
        if by == "steps":
            grid = self.steps_C
            loss = {name: arm.mean_C for name, arm in self.arms.items()}
        else:
            first = max(arm.gradients_C[0] for arm in self.arms.values())
            last = min(arm.gradients_C[-1] for arm in self.arms.values())
            grid = np.geomspace(first, max(first, last), 400)
            loss = {
                name: np.interp(np.log(grid), np.log(arm.gradients_C), np.log(arm.mean_C + 1e-300))
                for name, arm in self.arms.items()
            }
        table = np.stack(list(loss.values()))
        leader = table.argmin(0)
        apart = np.ptp(table, axis=0) > 0  # at the start all are equal
        turns = [i for i in range(grid.size) if apart[i] and (i == 0 or not apart[i - 1]
                                                              or leader[i] != leader[i - 1])]  # fmt: skip
        return [(float(grid[i]), list(loss)[leader[i]]) for i in turns]


def compare_rules(
    problem: SimulatedProblem,
    *,
    K: int = 10_000,
    B: int = 8,
    b: int = 1,
    epsilon: float = 0.1,
    per_loss: float | None = None,
    decay: float = 0.0,
    eta: float | Mapping[str, float] | None = None,
    sigma: float = 0.0,
    runs: int = 200,
    checkpoints: int | ArrayLike = 60,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> RuleComparison:
    """Run SGD, GSGD and the kept-loss rule on the same candidates; return courses and bounds.

    >>> from sifting.theory import LeastSquares
    >>> c = compare_rules(LeastSquares(dim=4), K=400, B=8, epsilon=0.05, runs=40)
    >>> bool(c.arms["kept"].mean_C[-1] < c.arms["GSGD"].mean_C[-1])  # GSGD floors
    True
    >>> bool(c.arms["kept"].gradients_C[-1] < 8 * 400)
    True
    >>> all(bool((a.mean_C <= a.bound_C).all()) for a in c.arms.values())
    True

    Args:
        problem: `LeastSquares`, `LogisticRegression`, `Neuron`, or your own as an `OwnObjective`.
        K: steps to run.
        B: candidates at each step.
        b: how many of them SGD and GSGD train on; 1 is the paper's setting.
        epsilon: share of the candidates' loss that `kept` may drop.
        per_loss: c, where `kept` may drop the smaller of ε and c F(w).
        decay: both η and ε fall as (k + 1)^-decay with the step k = 0, 1, ….
        eta: step size of all arms, or of each by name; 1/(2L) where not given.
        sigma: Gaussian noise of the log-losses that GSGD and `kept` choose by. The bound of
            `kept` then uses the share of the loss measured along the path.
        runs: independent repetitions.
        checkpoints: at how many K to evaluate, evenly in log K; or the K themselves.
        seed: of the generator.
        progress: called with (steps done, K) every few steps.
    """
    K = int(whole("K", K, 1, "run one step or more"))
    B = int(candidates("B", B))
    b = int(floats("b", whole("b", b, 1, "train on one or more"), lambda x: x <= B, "b <= B",
                   "no more can be trained on than are drawn"))  # fmt: skip
    S = int(whole("runs", runs, 1, "run once or more"))
    eps = float(epsilon_share(epsilon))
    sigma = float(deviation("sigma", sigma))
    decay = float(nonnegative("decay", decay, "steps fall"))
    if per_loss is not None:
        nonnegative("per_loss", per_loss, "it is ε over the loss")
        if decay > 0:
            raise ValueError(f"per_loss = {per_loss} with decay = {decay}: choose one of the two")
    steps_C = checkpoint_steps(checkpoints, K)
    c = problem.constants(B)
    fall_K = np.arange(1, K + 1, dtype=np.float64) ** -decay
    first = _step_sizes(eta, c.L)
    # what each arm's bound rests on; refuses a step that is too long before anything runs
    slack = {
        "SGD": _slack(first["SGD"] * fall_K, c, 0.0, b),
        "GSGD": _slack(first["GSGD"] * fall_K, c, 0.0, None),
        "kept": _slack(first["kept"] * fall_K, c, eps * fall_K, B),
    }
    if sigma > 0 and first["kept"] * c.L < 1:  # μ is known along the path only: see `_bound`
        slack["kept"] = _slack(first["kept"] * fall_K, c, 0.0, None)
    weight_AK = np.stack([first[name] * fall_K * slack[name] for name in ARMS])
    plan = RulePlan(S=S, B=B, b=b, sigma=sigma, per_loss=per_loss)
    eta_AK = np.stack([first[name] * fall_K for name in ARMS])
    run = walk(problem, plan, eta_AK, weight_AK, eps * fall_K, steps_C, seed, progress)
    refuse_divergence(c.L, first, run.loss_ASC, run.last_ACSD)
    arms = {}
    for a, name in enumerate(ARMS):
        spent_C, used_C, seen_C, live_C, kept_C = run.sums_AC5[a].T
        ratio_C = np.where(seen_C > 0, used_C / np.where(seen_C > 0, seen_C, 1), 1.0)
        bound_C = np.full(steps_C.size, np.nan)
        if c.convex:
            index_C = steps_C.astype(np.intp) - 1
            bound_C = _bound(name, c, first[name] * fall_K, eps * fall_K, B, b, ratio_C, index_C,
                             per_loss, sigma)  # fmt: skip
        live_C, kept_C = np.diff(live_C, prepend=0.0), np.diff(kept_C, prepend=0.0)
        keep_C = np.where(live_C > 0, kept_C / np.where(live_C > 0, live_C, 1) / B, np.nan)
        arms[name] = Course(name, run.loss_ASC[a], first[name], run.last_ACSD[a], spent_C, keep_C,
                            ratio_C, bound_C)  # fmt: skip
    return RuleComparison(steps_C, arms, c, B, b, eps)


def _bound(
    name: str,
    c: Constants,
    eta_K: Floats,
    eps_K: Floats,
    B: int,
    b: int,
    ratio_C: Floats,
    index_C: NDArray[np.intp],
    per_loss: float | None,
    sigma: float,
) -> Floats:
    if name == "SGD":
        return decaying_bound(eta_K, c.L, c.D0, c.F_star, B=b, L_F=c.L_F)[index_C]
    if name == "GSGD":
        # ρ*_B where it is known and one is picked by exact losses; else along the path
        known = b == 1 and sigma == 0 and c.source["rho_star"] != "search"
        rho_C = np.full(index_C.size, c.rho_star) if known else ratio_C
        return decaying_bound(eta_K, c.L, c.D0, c.Delta)[index_C] / rho_C
    if sigma > 0:  # what was kept is known along the path only; valid for steps below 1/L
        if eta_K[0] * c.L >= 1:
            return np.full(index_C.size, np.nan)
        return decaying_bound(eta_K, c.L, c.D0, c.F_star)[index_C] / ratio_C
    if per_loss is not None:
        return np.asarray(
            kept_loss_bound(index_C + 1, eta_K[0], c.L, c.D0, c.F_star, eps_K[0], B=B, L_F=c.L_F,
                            per_loss=per_loss)
        )  # fmt: skip
    return decaying_bound(eta_K, c.L, c.D0, c.F_star, epsilon=eps_K, B=B, L_F=c.L_F)[index_C]


def _slack(eta_K: Floats, c: Constants, epsilon: Floats | float, B: int | None) -> Floats:
    if not c.convex:  # no bound to weigh by: a plain mean
        return np.ones_like(eta_K)
    return np.asarray(kept_slack(eta_K, c.L, epsilon, B=B, L_F=c.L_F))


def _step_sizes(eta: float | Mapping[str, float] | None, L: float) -> dict[str, float]:
    if eta is None or not isinstance(eta, Mapping):
        value = 1 / (2 * L) if eta is None else eta
        eta = dict.fromkeys(ARMS, value)
    unknown = set(eta) - set(ARMS)
    if unknown:
        raise ValueError(f"eta names {sorted(unknown)}, but the arms are {ARMS}")
    return {
        name: float(floats(f"eta of {name}", eta.get(name, 1 / (2 * L)), lambda x: x > 0,
                           "eta > 0", "take a positive step"))
        for name in ARMS
    }  # fmt: skip
