"""What one batch of losses contributes to the estimates, under resampling."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sifting.theory import (
    Pairs,
    estimate,
)
from sifting.theory._resample import Ranking, batch_sums


def by_enumeration(early, exact, R, keep):
    """ρ_R, ρ_{R,approx}, order and recall by going through all subsets and all pairs."""
    n, mean = len(exact), exact.mean()
    largest, picked, kept_order = [], [], []
    for c in combinations(range(n), R):
        f, e = exact[list(c)], early[list(c)]
        largest.append(f.max())
        picked.append(f[e == e.max()].mean())
    for i, j in combinations(range(n), 2):
        if exact[i] == exact[j]:
            kept_order.append(1.0)
        elif early[i] == early[j]:
            kept_order.append(0.5)
        else:
            kept_order.append(float((early[i] > early[j]) == (exact[i] > exact[j])))
    k = max(1, int(np.floor(keep * n + 0.5)))
    top_early = set(np.argsort(-early, kind="stable")[:k])
    top_exact = set(np.argsort(-exact, kind="stable")[:k])
    recall = len(top_early & top_exact) / k
    kept = exact[list(top_early)].mean() / mean
    return np.mean(largest) / mean, np.mean(picked) / mean, np.mean(kept_order), recall, kept


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 5), st.integers(0, 10**6), st.sampled_from([0.25, 0.5, 1.0]))
def test_one_batch_against_enumeration(R, seed, keep):
    rng = np.random.default_rng(seed)
    exact = rng.exponential(size=9)
    early = exact * np.exp(rng.standard_normal(9))
    e = estimate(Pairs.of(early, exact), R=R, keep=keep, resamples=5)
    got = [x.value for x in (e.rho, e.rho_approx, e.preservation, e.recall, e.kept)]
    assert got == pytest.approx(by_enumeration(early, exact, R, keep), rel=1e-12)
    assert e.sigma.value == pytest.approx(np.log(early / exact).std(ddof=1))
    assert e.mu.value == pytest.approx(np.log(early / exact).mean())
    assert e.slope.value == pytest.approx(np.polyfit(np.log(exact), np.log(early), 1)[0])


@settings(deadline=None, max_examples=40)
@given(st.integers(2, 5), st.integers(0, 10**6))
def test_ties_are_broken_at_random_in_expectation(R, seed):
    rng = np.random.default_rng(seed)
    exact = rng.integers(0, 4, 8).astype(float) + 0.5
    early = rng.integers(0, 3, 8).astype(float)
    e = estimate(Pairs.of(early, exact), R=R, resamples=2)
    rho, approx, order, *_ = by_enumeration(early, exact, R, 0.5)
    assert (e.rho.value, e.rho_approx.value) == pytest.approx((rho, approx))
    assert e.preservation.value == pytest.approx(order)
    # recall and kept, averaged over 2000 random orders; tolerance: 5 standard errors
    orders = rng.permuted(np.tile(np.arange(8), (2, 2000, 1)), axis=2) * 1e-9
    top_early, top_exact = (
        (key + jitter).argsort(1).argsort(1) >= 4
        for key, jitter in zip((early, exact), orders, strict=True)
    )
    for got, seen in (
        (e.recall.value, (top_early & top_exact).sum(1) / 4),
        (e.kept.value, (top_early * exact).sum(1) / 4 / exact.mean()),
    ):
        assert got == pytest.approx(seen.mean(), abs=5 * seen.std() / np.sqrt(2000) + 1e-9)


def test_counts_stand_for_copies_that_are_never_compared_with_themselves():
    rng = np.random.default_rng(0)
    key, value = rng.standard_normal(7), rng.exponential(size=7)
    counts = np.array([[2.0, 0, 1, 3, 1, 0, 0]])
    for R in (2, 3):
        total = weight = 0.0
        for c in combinations(range(7), R):
            mass = np.prod(counts[0, list(c)])
            total += mass * value[max(c, key=lambda i: key[i])]
            weight += mass
        assert Ranking(key, counts).mean_of_top(value, R)[0] == pytest.approx(total / weight)
    taken = Ranking(key, counts).take(3)
    assert taken.sum() == 3
    assert np.all(taken <= counts)


def test_unit_counts_agree_between_both_ways_of_computing():
    rng = np.random.default_rng(1)
    early, exact = rng.exponential(size=(2, 40))
    plain = batch_sums(early, exact, np.ones((1, 40)), 5, 0.5)
    doubled = batch_sums(early, exact, np.stack([np.ones(40), 2.0 * np.eye(40)[0] + 1]), 5, 0.5)
    assert np.allclose(plain[0], doubled[0])
