"""The random generators that a loader and its samplers draw from."""

from __future__ import annotations

import random

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, RandomSampler

from sifting.data.generators import OwnGenerators, chain_of, generators_of, restore_generators
from sifting.rng import RandomState


def own_sampler(seed: int = 3) -> BatchSampler:
    generator = torch.Generator().manual_seed(seed)
    return BatchSampler(RandomSampler(range(8), generator=generator), 4, drop_last=False)


def test_generators_are_found_in_loaders_and_in_samplers_of_samplers() -> None:
    sampler = own_sampler()
    assert list(generators_of(sampler)) == ["1.RandomSampler"]
    own = torch.Generator()
    loader = DataLoader(range(8), batch_size=4, shuffle=True, generator=own)
    assert list(generators_of(loader).values()) == [own], "the same one is named once"
    assert generators_of([1, 2]) == {}
    assert [type(node).__name__ for node in chain_of(sampler)] == ["BatchSampler", "RandomSampler"]


def test_what_was_taken_of_them_is_put_back() -> None:
    sampler = own_sampler()
    states = {name: generator.get_state() for name, generator in generators_of(sampler).items()}
    first = list(sampler)
    restore_generators(sampler, {**states, "9.Elsewhere": torch.zeros(3)})
    assert list(sampler) == first


def test_a_pass_of_its_own_leaves_every_stream_as_it_was() -> None:
    sampler = own_sampler()
    (generator,) = generators_of(sampler).values()
    before, state = RandomState.now(), generator.get_state()
    own = OwnGenerators(sampler)
    passes = []
    for seed in (0, 0, 1):
        own.begin(seed, ahead=0)
        with own.used():
            random.random()
            passes.append(list(sampler))
    assert passes[0] == passes[1] != passes[2]
    assert before.same_as(RandomState.now())
    assert torch.equal(generator.get_state(), state)


def test_samplers_that_go_by_the_epoch_make_another_order_and_are_told_theirs_again() -> None:
    sampler = DistributedSampler(range(16), num_replicas=2, rank=0)
    sampler.set_epoch(3)
    plain = list(sampler)
    own = OwnGenerators(sampler)
    own.begin(0, ahead=1000)
    with pytest.raises(KeyError), own.used():
        assert sampler.epoch == 1003
        assert list(sampler) != plain
        raise KeyError
    assert sampler.epoch == 3
    assert list(sampler) == plain
