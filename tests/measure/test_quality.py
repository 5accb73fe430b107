from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from sifting.measure.quality import quality, rank_correlation


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=3, max_size=20))
def test_rank_correlation_agrees_with_scipy(pairs: list[tuple[int, int]]) -> None:
    a, b = (torch.tensor(column, dtype=torch.float64) for column in zip(*pairs, strict=True))
    if len(a.unique()) < 2 or len(b.unique()) < 2:
        assert rank_correlation(a, b) == 0
    else:
        assert rank_correlation(a, b) == pytest.approx(float(spearmanr(a, b).statistic), abs=1e-9)


def test_quality_of_the_best_the_worst_and_the_flat() -> None:
    exact = torch.tensor([1.0, 2.0, 3.0, 6.0])
    best = quality(exact, exact, torch.tensor([2, 3]))
    assert (best.recall, best.rho_approx) == (1.0, 1.5)
    worst = quality(-exact, exact, torch.tensor([0, 1]))
    assert (worst.recall, worst.rank_correlation, worst.rho_approx) == (0.0, -1.0, 0.5)
    assert quality(exact, torch.zeros(4), torch.tensor([0, 1])).rho_approx == 1.0
