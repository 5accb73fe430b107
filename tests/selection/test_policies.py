from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sifting.selection.choice import choose
from sifting.selection.policies import (
    POLICIES,
    Draw,
    Percentile,
    find_policy,
    inclusion_probabilities,
)

score_lists = st.lists(st.floats(0, 100, width=32), min_size=2, max_size=24)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@given(score_lists, st.data())
def test_top_keeps_no_score_below_one_it_leaves(values: list[float], data: st.DataObject) -> None:
    scores = torch.tensor(values)
    count = data.draw(st.integers(1, len(values) - 1))
    kept = choose(scores, count, generator=generator()).indices_K
    left = torch.tensor([i for i in range(len(values)) if i not in kept.tolist()])
    assert scores[kept].min() >= scores[left].max()


def test_ties_go_to_the_first() -> None:
    kept = choose(torch.ones(6), 3, generator=generator()).indices_K
    assert kept.tolist() == [0, 1, 2]


def test_percentile_prefers_high_ranks_and_beta_sharpens() -> None:
    g = generator(1)
    top_half = []
    for beta in (0.0, 1.0, 4.0):
        hits = 0
        for _ in range(500):
            kept = choose(
                torch.arange(20.0), 10, generator=g, policy=Percentile(beta=beta)
            ).indices_K
            hits += int((kept >= 10).sum())
        top_half.append(hits / 5000)
    assert top_half[0] == pytest.approx(0.5, abs=0.03)
    assert top_half[0] + 0.1 < top_half[1] < top_half[2] - 0.05


@pytest.mark.parametrize("explore", [0.0, 0.5])
def test_proportional_weights_make_the_weighted_mean_unbiased(explore: float) -> None:
    """20,000 draws; the estimate must lie within 4 standard errors of the candidates' mean."""
    g = generator(5)
    scores = torch.tensor([0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 4.0, 30.0])
    values = torch.tensor([3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0], dtype=torch.float64)
    draws = 20_000
    estimates = torch.empty(draws, dtype=torch.float64)
    hits = torch.zeros(8, dtype=torch.float64)
    for i in range(draws):
        choice = choose(scores, 4, generator=g, policy=POLICIES["proportional"], explore=explore)
        estimates[i] = (choice.weights_K.double() * values[choice.indices_K]).mean()
        hits[choice.indices_K] += 1
    error = estimates.std() / math.sqrt(draws)
    assert abs(float(estimates.mean() - values.mean())) < 4 * float(error)
    assert hits[7] == draws  # its share of the total is above 1/4: kept for certain
    assert hits[0] > 0  # a score of 0 is rare, not impossible


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=30), st.data())
def test_inclusion_probabilities_add_up(values: list[float], data: st.DataObject) -> None:
    count = data.draw(st.integers(1, len(values) - 1))
    chance = inclusion_probabilities(torch.tensor(values), count)
    assert float(chance.sum()) == pytest.approx(count)
    assert bool(((chance > 0) & (chance <= 1)).all())


def test_proportional_refuses_negative_scores() -> None:
    with pytest.raises(ValueError, match="at least 0, got -2"):
        choose(torch.tensor([-2.0, 1.0]), 1, generator=generator(), policy=POLICIES["proportional"])


def test_a_policy_is_a_name_an_object_or_a_function() -> None:
    assert find_policy("percentile") == Percentile()
    own = Percentile(beta=2)
    assert find_policy(own) is own
    seen: list[list[float]] = []

    def lowest(scores: torch.Tensor, count: int, g: torch.Generator) -> torch.Tensor:
        seen.append(scores.tolist())
        return scores.argsort()[:count]

    scores = torch.tensor([0.5, 0.1, 0.9, 0.3])
    policy = find_policy(lowest)
    assert policy.name == "lowest"
    choice = choose(scores, 2, generator=generator(), policy=policy)
    assert choice.indices_K.tolist() == [1, 3]
    assert seen == [pytest.approx(scores.tolist())]  # in the order of the candidates
    kept = choose(scores, 2, generator=generator(), policy=policy, trim=0.25).indices_K
    assert kept.tolist() == [1, 3]
    assert len(seen[1]) == 3  # what is trimmed cannot be chosen


def test_a_policy_of_a_users_own_is_an_object_with_draw() -> None:
    class Weighted:
        name, scored = "weighted", True

        def draw(self, scores: torch.Tensor, count: int, g: torch.Generator) -> Draw:
            chance = torch.full((len(scores),), count / len(scores), dtype=torch.float64)
            return Draw(torch.arange(count), chance)

    choice = choose(torch.arange(4.0), 2, generator=generator(), policy=find_policy(Weighted()))
    assert choice.indices_K.tolist() == [2, 3]
    assert choice.weights_K.tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("policy", "error", "message"),
    [
        ("best", ValueError, "policy='best' is unknown: choose one of top"),
        (7, TypeError, "policy=7: give a name"),
        (Percentile, TypeError, "give a name"),
    ],
)
def test_what_is_no_policy_is_named(policy: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        find_policy(policy)


def test_beta_must_be_a_number() -> None:
    with pytest.raises(ValueError, match=r"beta=-1\.0"):
        Percentile(beta=-1.0)
    with pytest.raises(TypeError, match="beta='much'"):
        Percentile(beta="much")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (lambda s, n, g: [0, 1], "it returned list"),
        (lambda s, n, g: torch.tensor([0.0, 1.0]), "as a tensor of whole numbers"),
        (lambda s, n, g: torch.tensor([1, 1]), r"it returned \[1, 1\]"),
        (lambda s, n, g: torch.tensor([0]), r"must return 2 different indices below 4"),
        (lambda s, n, g: torch.tensor([0, 4]), r"it returned \[0, 4\]"),
        (lambda s, n, g: torch.tensor([-1, 0]), r"it returned \[-1, 0\]"),
    ],
)
def test_what_a_function_returns_is_checked(found: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        choose(torch.ones(4), 2, generator=generator(), policy=find_policy(found))
