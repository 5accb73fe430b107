"""Progress between looks, by option."""

from __future__ import annotations

import math

import pytest
import torch

from sifting.autopilot.noted import DRIFT, LOOKS, Noted, pooled
from sifting.autopilot.options import LADDER, Option
from sifting.measure.learning import Progress


def test_every_ratio_is_noted_and_only_the_last_looks_are_kept() -> None:
    noted, before = Noted(), torch.arange(8.0)
    for look in range(LOOKS + 2):
        noted.add("input", before, before - look, torch.arange(8.0))
    assert set(noted) == {Option("input", ratio) for ratio in LADDER}
    found = noted[Option("input", 2)]
    assert [one.kept + one.rest for one in found] == [2.0, 3.0, 4.0, 5.0]
    assert noted.recent(Option("memory", 2)) is None


def test_two_looks_and_no_more_are_added_up() -> None:
    one, other = Progress(0.3, 0.1, 1e-5, 1e-5), Progress(0.1, 0.1, 1e-5, 1e-5)
    assert pooled([one]) == one
    assert pooled([one, other]) == one + other


@pytest.mark.parametrize("error", [1e-6, 1e-4, 1e-3])
def test_shares_of_earlier_and_later_looks_are_weighed_by_their_variances(error: float) -> None:
    early, late = Progress(0.4, 1.6, 1e-4, 1e-4), Progress(0.3, 0.1, error / 2, error / 2)
    found = pooled([early, late, late])
    assert found is not None
    both = late + late
    weights = [1 / (early.error**2 + DRIFT**2), 1 / both.error**2]
    expected = (weights[0] * early.share + weights[1] * both.share) / sum(weights)
    assert found.share == pytest.approx(expected)
    # errors of sums are taken at the share of the sum: by some percent not those of the parts
    assert found.error == pytest.approx(sum(weights) ** -0.5, rel=0.15)


def test_the_better_the_last_looks_tell_the_less_the_earlier_ones_count() -> None:
    early = Progress(0.2, 0.8, 1e-5, 1e-5)
    shares = []
    for error in (1e-2, 1e-3, 1e-4, 1e-6):
        found = pooled([early, *2 * [Progress(0.3, 0.1, error, error)]])
        assert found is not None
        shares.append(found.share)
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(0.75, abs=0.01)


def test_where_nothing_was_learned_lately_the_earlier_share_stands_and_is_less_sure() -> None:
    early, none = Progress(0.3, 0.1, 1e-5, 1e-5), Progress(1e-3, -1e-3, 1e-5, 1e-5)
    assert not none.told
    found = pooled([early, none, none])
    assert found is not None
    assert found.share == pytest.approx(early.share)
    assert found.error**2 == pytest.approx(early.error**2 + DRIFT**2)


def test_where_losses_rise_beyond_noise_the_earlier_share_holds_no_more() -> None:
    early, worse = Progress(0.3, 0.1, 1e-5, 1e-5), Progress(-0.1, -0.1, 1e-5, 1e-5)
    assert worse.lost
    found = pooled([early, worse, worse])
    assert found == worse + worse
    assert not found.told


def test_earlier_looks_without_progress_do_not_count() -> None:
    none, late = Progress(1e-3, 0.0, 1e-4, 1e-4), Progress(0.3, 0.1, 1e-5, 1e-5)
    assert pooled([none, late, late]) == late + late


def test_looks_that_are_exact_are_joined_too() -> None:
    one = Progress(0.3, 0.1, 0.0, 0.0)
    found = pooled([one, one, one])
    assert found is not None
    assert math.isfinite(found.share)
    assert found.share == pytest.approx(0.75)
