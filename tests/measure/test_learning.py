"""Where learning happens: shares, their errors, and what they add up to."""

from __future__ import annotations

import math

import pytest
import torch

from sifting.measure.learning import Progress, progress, speedup


def test_the_share_is_found_within_its_error() -> None:
    stream = torch.Generator().manual_seed(0)
    within = 0
    for _ in range(200):
        scores_M = torch.rand(400, generator=stream)
        top_M = scores_M > scores_M.median()
        fall_M = torch.where(top_M, 0.3, 0.1) + 0.5 * torch.randn(400, generator=stream)
        before_M = torch.rand(400, generator=stream)
        found = progress(before_M, before_M - fall_M, scores_M, 2)
        within += abs(found.share - 0.75) < 2 * found.error
    assert 0.9 < within / 200 <= 1  # about 95 in 100


def test_looks_add_up() -> None:
    one, other = Progress(0.03, 0.01, 1e-4, 1e-4), Progress(0.01, 0.03, 1e-4, 1e-4)
    both = one + other
    assert both.share == pytest.approx(0.5)
    assert both.error == pytest.approx(math.sqrt(2 * 0.25 * 2e-4) / 0.08)


def test_an_earlier_part_counts_by_its_variance_and_the_drift() -> None:
    early, late = Progress(0.2, 0.2, 1e-4, 1e-4), Progress(0.03, 0.01, 1e-5, 1e-5)
    for drift in (0.0, 0.05, 0.2):
        found = early.beside(late, drift=drift)
        assert found.share == pytest.approx(early.share)
        assert found.error**2 == pytest.approx(early.error**2 + drift**2)
        ratio = late.error**2 / (early.error**2 + drift**2)
        assert (found.kept + found.rest) / (late.kept + late.rest) == pytest.approx(ratio)


def test_progress_within_noise_has_no_share() -> None:
    half = Progress(1e-3, 0.0, 1e-6, 0.0)
    assert not half.told
    assert half.error == math.inf
    assert Progress(3e-3, 0.0, 1e-6, 0.0).told


def test_without_progress_nothing_is_said() -> None:
    none = Progress(-0.01, 0.0, 1e-4, 1e-4)
    assert math.isnan(none.share)
    assert none.error == math.inf


def test_speedup_is_one_where_all_learn_alike() -> None:
    for ratio in (2, 4, 8):
        for explore in (0.0, 0.25, 0.5):
            assert speedup(1 / ratio, ratio=ratio, explore=explore) == pytest.approx(1.0)
    assert speedup(1.0, ratio=2, explore=0.0) == 2
    assert speedup(0.3, ratio=1, explore=0.0) == pytest.approx(1.0)
