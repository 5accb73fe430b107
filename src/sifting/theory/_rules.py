"""The steps of SGD, GSGD and the kept-loss rule on shared candidates, for `adaptive`.

Legend: A arms, S independent runs, B candidates, D parameters, C checkpoints, K steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sifting.theory._checks import Floats
from sifting.theory._runs import drawn_ahead
from sifting.theory.kept import dropped
from sifting.theory.problems import SimulatedProblem

ARMS = ("SGD", "GSGD", "kept")
_PAIR_211 = np.arange(2)[:, None, None]
_BLOCK = 32  # steps whose samples are drawn at once; part of what a seed reproduces
_LEAST = 1e-290  # of the largest loss: below, the smaller ones lose digits, and then are 0


class RulePlan(NamedTuple):
    """Runs, candidates, how many SGD and GSGD train on, noise, and ε over the loss."""

    S: int
    B: int
    b: int
    sigma: float
    per_loss: float | None


class Walk(NamedTuple):
    """F at the mean iterates; the iterates; and sums over the steps, each a mean over the runs.

    Of gradients, loss trained on and loss seen; then of the runs that had a loss left to learn
    from, and of the gradients of those.
    """

    loss_ASC: Floats
    last_ACSD: Floats
    sums_AC5: Floats


def walk(
    problem: SimulatedProblem,
    plan: RulePlan,
    eta_AK: Floats,
    weight_AK: Floats,
    epsilon_K: Floats,
    steps_C: Floats,
    seed: int,
    progress: Callable[[int, int], None] | None,
) -> Walk:
    """All arms, in their order, through K steps; `weight_AK` weighs iterates and losses."""
    A, K = eta_AK.shape
    w_ASD = np.broadcast_to(problem.start, (A, plan.S, problem.dim)).copy()
    total_ASD, step_ASD = np.zeros_like(w_ASD), np.empty_like(w_ASD)
    sums_A5 = np.zeros((A, 5))
    C = steps_C.size
    out = Walk(np.empty((A, plan.S, C)), np.empty((A, C, plan.S, problem.dim)), np.empty((A, C, 5)))
    # SGD trains on the first b, which are as good as any; GSGD on the b of the largest losses
    chosen_2Sb = np.broadcast_to(np.arange(plan.b), (2, plan.S, plan.b)).copy()
    rows_S1 = np.arange(plan.S)[:, None]
    due = {int(k): i for i, k in enumerate(steps_C)}
    drawn = drawn_ahead(
        problem, (plan.S, plan.B), K, seed=seed, block=_BLOCK, progress=progress,
        noise=_normal if plan.sigma > 0 else None,
    )  # fmt: skip
    for k, (batch, zeta) in enumerate(drawn):
        total_ASD += weight_AK[:, k, None, None] * w_ASD
        loss_ASB = problem.loss(w_ASD[:, :, None, :], batch)
        score_ASB = loss_ASB if zeta is None else _noisy(loss_ASB, plan.sigma * zeta)
        limit: Floats | float = epsilon_K[k]
        if plan.per_loss is not None:
            limit = np.minimum(limit, plan.per_loss * problem.objective(w_ASD[2]))
        chosen_2Sb[1] = _largest(score_ASB[1], plan.b)
        kept_SB = _kept(score_ASB[2], limit)
        part = tuple(p[rows_S1, chosen_2Sb] for p in batch)
        step_ASD[:2] = problem.gradient(w_ASD[:2, :, None, :], part).sum(2) / plan.b
        all_SBD = problem.gradient(w_ASD[2, :, None, :], batch)
        step_ASD[2] = ((kept_SB / plan.B)[:, None, :] @ all_SBD)[:, 0]
        trained_2 = loss_ASB[_PAIR_211, rows_S1, chosen_2Sb].sum((1, 2)) / (plan.S * plan.b)
        mass_A = weight_AK[:, k] / (plan.S * plan.B)
        live_AS = loss_ASB.max(-1) > _LEAST
        count_S = kept_SB.sum(1)
        sums_A5[:2, 0] += plan.b
        sums_A5[2, 0] += count_S.sum() / plan.S
        sums_A5[:2, 1] += weight_AK[:2, k] * trained_2
        sums_A5[2, 1] += mass_A[2] * loss_ASB[2][kept_SB].sum()
        sums_A5[:, 2] += mass_A * loss_ASB.sum((1, 2))
        sums_A5[:, 3] += live_AS.sum(1) / plan.S
        sums_A5[:2, 4] += plan.b * live_AS[:2].sum(1) / plan.S
        sums_A5[2, 4] += count_S @ live_AS[2] / plan.S
        w_ASD -= eta_AK[:, k, None, None] * step_ASD
        if k + 1 in due:
            i = due[k + 1]
            out.sums_AC5[:, i] = sums_A5
            out.last_ACSD[:, i] = w_ASD
            mean_ASD = total_ASD / weight_AK[:, : k + 1].sum(1)[:, None, None]
            out.loss_ASC[:, :, i] = problem.objective(mean_ASD)
    return out


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    return rng.standard_normal(shape)


def _noisy(loss_ASB: Floats, noise_SB: Floats) -> Floats:
    """f exp(noise), over the largest of each run, so that no noise overflows."""
    with np.errstate(divide="ignore"):
        log_ASB = np.log(loss_ASB) + noise_SB
    top_AS1 = log_ASB.max(-1, keepdims=True)
    score: Floats = np.exp(log_ASB - np.where(np.isfinite(top_AS1), top_AS1, 0.0))
    return score


def _largest(score_SB: Floats, b: int) -> NDArray[np.intp]:
    """Which b of the candidates have the largest scores, (S, b)."""
    if b == 1:
        return np.asarray(score_SB.argmax(1)[:, None], np.intp)
    B = score_SB.shape[1]
    return np.asarray(np.argpartition(score_SB, B - b, axis=1)[:, B - b :], np.intp)


def _kept(score_SB: Floats, epsilon: Floats | float) -> NDArray[np.bool_]:
    """Which of the candidates carry 1 - ε of the score; ties at the edge are kept too."""
    S = score_SB.shape[0]
    rising_SB = np.sort(score_SB, axis=1)
    gone_S = dropped(rising_SB, np.broadcast_to(np.asarray(epsilon), (S,)))
    edge_S1 = rising_SB[np.arange(S), gone_S.astype(np.intp), None]
    kept: NDArray[np.bool_] = (score_SB >= edge_S1) & (score_SB > 0)
    kept[:, 0] |= rising_SB[:, -1] == 0  # nothing left to learn from: one is as good as any
    return kept
