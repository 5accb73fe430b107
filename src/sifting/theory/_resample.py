"""What one batch of (early, exact) losses contributes to the estimates, under resampling.

Legend: N resamples, n candidates of a batch, G groups of equal keys, Q statistics.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sifting.theory._checks import Floats
from sifting.theory._order import top_weights

# what is summed over batches, in the order of the last axis of `batch_sums`
COLUMNS = (
    "mean", "top", "top_approx", "pair", "pair_approx", "kept", "kept_exact", "order", "recall",
    "log_square", "log_df", "log_mean", "log_batches", "xy", "xx", "batches",
)  # fmt: skip


def batch_sums(early_n: Floats, exact_n: Floats, count_Nn: Floats, R: int, keep: float) -> Floats:
    """One batch's contribution to every sum, for N resamples in which pair i occurs count times.

    Subsets and pairs are of distinct candidates, weighted by the product of their counts: a
    resample that holds a candidate twice does not compare it with itself.
    """
    n = early_n.size
    k = max(1, int(np.floor(keep * n + 0.5)))
    mean_N = count_Nn @ exact_n / n
    by_early, by_exact = Ranking(early_n, count_Nn), Ranking(exact_n, count_Nn)
    taken_Nn, best_Nn = by_early.take(k), by_exact.take(k)
    both_Nn = taken_Nn * best_Nn / np.where(count_Nn > 0, count_Nn, 1)
    same_nn = _same_order(early_n, exact_n)
    distinct_N = n**2 - (count_Nn**2).sum(1)
    order_N = ((count_Nn @ same_nn) * count_Nn).sum(1) / np.where(distinct_N > 0, distinct_N, 1)
    sums = [
        mean_N,
        by_exact.mean_of_top(exact_n, R),
        by_early.mean_of_top(exact_n, R),
        by_exact.mean_of_top(exact_n, 2),
        by_early.mean_of_top(exact_n, 2),
        taken_Nn @ exact_n / k,
        best_Nn @ exact_n / k,
        np.where(distinct_N > 0, order_N, np.nan),
        both_Nn.sum(1) / k,
        *_log_noise(early_n, exact_n, count_Nn),
        np.ones(len(count_Nn)),
    ]
    return np.stack(sums, axis=1)


class Ranking:
    """A batch in rising order of a key, with N sets of counts; equal keys form a group."""

    def __init__(self, key_n: Floats, count_Nn: Floats) -> None:
        self.order_n = np.argsort(key_n, kind="stable")
        self.count_Nn = count_Nn[:, self.order_n]
        sorted_n = key_n[self.order_n]
        new_n = np.concatenate(([True], sorted_n[1:] > sorted_n[:-1]))
        self.starts_G: NDArray[np.intp] = np.flatnonzero(new_n)
        self.group_n = np.cumsum(new_n) - 1

    def take(self, k: int) -> Floats:
        """How much of each candidate is among the k largest; ties at the edge share alike."""
        mass_NG = np.add.reduceat(self.count_Nn, self.starts_G, axis=1)
        above_NG = self.count_Nn.sum(1, keepdims=True) - np.cumsum(mass_NG, axis=1)
        room_NG = np.clip(k - above_NG, 0, mass_NG)
        share_NG = room_NG / np.where(mass_NG > 0, mass_NG, 1)
        taken_Nn = np.empty_like(self.count_Nn)
        taken_Nn[:, self.order_n] = self.count_Nn * share_NG[:, self.group_n]
        return taken_Nn

    def mean_of_top(self, value_n: Floats, R: int) -> Floats:
        """Mean over R-subsets of the value of the candidate with the largest key."""
        value_n = value_n[self.order_n]
        mass_NG = np.add.reduceat(self.count_Nn, self.starts_G, axis=1)
        total_NG = np.add.reduceat(self.count_Nn * value_n, self.starts_G, axis=1)
        fair_NG = total_NG / np.where(mass_NG > 0, mass_NG, 1)  # ties are broken at random
        n = value_n.size
        if np.all(self.count_Nn == 1):
            weighted: Floats = fair_NG[:, self.group_n] @ top_weights(n, R)
            return weighted
        # e[r] is the elementary symmetric sum of degree r of the counts so far, scaled by
        # (R/n)^r against overflow; a candidate tops e[R - 1] subsets of those before it
        e = np.zeros((R + 1, len(self.count_Nn)))
        e[0] = 1.0
        top_N = np.zeros(len(self.count_Nn))
        for i in range(n):
            c_N = self.count_Nn[:, i] * (R / n)
            top_N += c_N * e[R - 1] * fair_NG[:, self.group_n[i]]
            e[1:] += c_N * e[:-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean: Floats = np.where(e[R] > 0, top_N / e[R], np.nan)
        return mean


def _same_order(early_n: Floats, exact_n: Floats) -> Floats:
    """1 where picking the larger early of two picks a largest exact, 1/2 where early ties."""
    early_nn = np.sign(early_n[:, None] - early_n)
    exact_nn = np.sign(exact_n[:, None] - exact_n)
    same_nn = np.where(exact_nn == 0, 1.0, (1 + early_nn * exact_nn) / 2)
    np.fill_diagonal(same_nn, 0.0)
    return same_nn


def _log_noise(early_n: Floats, exact_n: Floats, count_Nn: Floats) -> list[Floats]:
    """Squares, degrees of freedom, mean and weight of log(early/exact); xy and xx of the logs."""
    ok_n = (early_n > 0) & (exact_n > 0)
    if ok_n.sum() < 2:
        return [np.zeros(len(count_Nn)) for _ in range(6)]
    m_Nn = count_Nn[:, ok_n]
    x_n, y_n = np.log(exact_n[ok_n]), np.log(early_n[ok_n])
    centre = float(np.mean(y_n - x_n))
    noise_n, x_n, y_n = y_n - x_n - centre, x_n - x_n.mean(), y_n - y_n.mean()
    total_N = m_Nn.sum(1)
    distinct_N = total_N**2 - (m_Nn**2).sum(1)
    usable_N = (distinct_N > 0).astype(np.float64)
    mean_N = m_Nn @ noise_n / np.maximum(total_N, 1)
    spread_N = total_N * (m_Nn @ noise_n**2) - (m_Nn @ noise_n) ** 2
    variance_N = spread_N / np.where(distinct_N > 0, distinct_N, 1)
    df_N = (total_N - 1) * usable_N
    xx_N = m_Nn @ x_n**2 - (m_Nn @ x_n) ** 2 / np.maximum(total_N, 1)
    xy_N = m_Nn @ (x_n * y_n) - (m_Nn @ x_n) * (m_Nn @ y_n) / np.maximum(total_N, 1)
    return [variance_N * df_N, df_N, (mean_N + centre) * usable_N, usable_N, xy_N, xx_N]
