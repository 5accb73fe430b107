from __future__ import annotations

import random

import pytest
import torch

from sifting.selection.budget import choose_within, deal, fill
from sifting.selection.choice import Rule
from sifting.selection.policies import Random


def test_a_budget_is_met_where_costs_allow_it():
    chance = random.Random(0)
    for _ in range(200):
        costs = [chance.randint(10, 300) for _ in range(24)]
        budget = chance.uniform(0.3, 0.7) * sum(costs)
        taken = fill(costs, budget)
        assert len(set(taken)) == len(taken)
        assert sum(costs[i] for i in taken) == pytest.approx(budget, rel=0.02)


def test_the_first_wanted_are_taken_where_they_fit():
    assert fill([5] * 8, 20) == [0, 1, 2, 3]
    assert fill([30, 1, 1], 10) == [1, 2]
    assert fill([30, 40], 10) == []


def test_trimmed_and_dropped_candidates_are_not_kept():
    scores = torch.tensor([9.0, 5.0, -torch.inf, 4.0, 3.0])
    costs = torch.full((5,), 10)
    generator = torch.Generator().manual_seed(0)
    kept = choose_within(scores, costs, 20, rule=Rule(trim=0.2), generator=generator)
    assert kept.indices_K.tolist() == [1, 3]


def test_explored_ones_are_marked_and_come_from_the_rest():
    scores, costs = torch.arange(40.0), torch.full((40,), 10)
    generator = torch.Generator().manual_seed(0)
    kept = choose_within(scores, costs, 200, rule=Rule(explore=0.5), generator=generator)
    assert kept.indices_K.tolist()[-10:] == list(range(30, 40))
    assert kept.explored == int(kept.explored_K.sum()) == 10
    assert not bool(kept.explored_K[-10:].any())


def test_random_is_random_and_repeatable():
    def drawn(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        rule = Rule(policy=Random())
        return choose_within(
            torch.zeros(20), torch.full((20,), 7), 70, rule=rule, generator=generator
        ).indices_K.tolist()

    assert drawn(0) == drawn(0) != drawn(1)
    assert len(drawn(0)) == 10


def test_every_rank_gets_about_as_much():
    chance = random.Random(1)
    costs = torch.tensor([chance.randint(10, 200) for _ in range(40)])
    hands = deal(costs, 4)
    assert sorted(i for hand in hands for i in hand) == list(range(40))
    paid = [float(costs[hand].sum()) for hand in hands]
    assert max(paid) <= 1.02 * min(paid)
    assert all(deal(torch.tensor([100, 1, 1]), 3))
