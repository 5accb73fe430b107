"""From scores to which samples are trained, and with what weights."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sifting.selection.choice import Rule, choose, explored_count
from sifting.selection.policies import (
    POLICIES,
    Percentile,
)

score_lists = st.lists(st.floats(0, 100, width=32), min_size=2, max_size=24)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(score_lists, st.data())
def test_any_policy_keeps_exactly_that_many_distinct_candidates_in_order(
    values: list[float], data: st.DataObject
) -> None:
    scores = torch.tensor(values)
    count = data.draw(st.integers(1, len(values)))
    options: dict[str, Any] = {
        "policy": data.draw(st.sampled_from([*POLICIES.values(), Percentile(beta=2.5)])),
        "trim": data.draw(st.floats(0, 1 - count / len(values))),
        "explore": data.draw(st.floats(0, 1)),
    }
    seed = data.draw(st.integers(0, 1000))
    choice = choose(scores, count, generator=generator(seed), **options)
    kept = choice.indices_K.tolist()
    assert len(kept) == count
    assert kept == sorted(set(kept))
    assert set(kept) <= set(range(len(values)))
    assert choice.weights_K.shape == choice.explored_K.shape == (count,)
    assert bool((choice.weights_K > 0).all())
    assert int(choice.explored_K.sum()) == choice.explored
    if count < len(values):
        assert abs(choice.explored - options["explore"] * count) < 1
    again = choose(scores, count, generator=generator(seed), **options)
    assert again.indices_K.tolist() == kept


def test_trim_skips_the_most_extreme() -> None:
    kept = choose(torch.arange(10.0), 4, generator=generator(), trim=0.2).indices_K
    assert kept.tolist() == [4, 5, 6, 7]


def test_explore_takes_its_share_from_the_rest() -> None:
    choice = choose(torch.arange(100.0), 40, generator=generator(), explore=0.25)
    ruled = choice.indices_K[~choice.explored_K]
    assert ruled.tolist() == list(range(70, 100))
    assert int(choice.explored_K.sum()) == 10
    assert (choice.indices_K[choice.explored_K] < 70).all()


def test_explored_picks_are_uniform_over_the_rest() -> None:
    g = generator(3)
    counts = torch.zeros(10)
    for _ in range(3000):
        choice = choose(torch.arange(10.0), 4, generator=g, explore=0.5)
        counts[choice.indices_K] += 1
    assert (counts[8:] == 3000).all()
    # 2 of 8 each time: 750 expected, standard deviation 24
    assert (counts[:8] - 750).abs().max() < 4 * 24


def test_the_explored_share_is_right_also_when_few_are_kept() -> None:
    g = generator(2)
    assert sum(explored_count(0.25, 1, g) for _ in range(2000)) == pytest.approx(500, abs=80)
    assert explored_count(1.0, 3, g) == 3
    assert explored_count(0.0, 3, g) == 0


def test_dropped_scores_rank_last() -> None:
    scores = torch.tensor([-math.inf, 0.0, -math.inf, 2.0])
    for policy in POLICIES.values():
        for explore in (0.0, 0.5, 1.0):
            kept = choose(
                scores, 2, generator=generator(), policy=policy, explore=explore
            ).indices_K
            assert kept.tolist() == [1, 3]
    assert 3 in choose(scores, 3, generator=generator()).indices_K.tolist()  # others do not suffice


def test_trim_and_count_must_fit() -> None:
    with pytest.raises(ValueError, match=r"trim=0\.5 takes 2 of 4 candidates and 3 are to be kept"):
        choose(torch.ones(4), 3, generator=generator(), trim=0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trim": 1.0}, r"trim=1.0 is not in \[0, 1\)"),
        ({"explore": 1.5}, r"explore=1.5 is not in \[0, 1\]"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Rule(**options)


def test_count_must_fit() -> None:
    with pytest.raises(ValueError, match="count=5: choose between 1 and the 4"):
        choose(torch.ones(4), 5, generator=generator())
