from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler

from sifting.data.generators import generators_of
from sifting.data.stream import IndexStream, StreamPosition
from sifting.rng import RandomState


def sampler(samples: int = 12, size: int = 4, seed: int | None = None) -> BatchSampler:
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    return BatchSampler(RandomSampler(range(samples), generator=generator), size, drop_last=False)


def drawn(stream: IndexStream, factor: int = 2) -> list[list[Any]]:
    found = []
    while (candidates := stream.draw(lambda size: factor * size)) is not None:
        found.append(candidates)
    return found


def test_the_first_pass_is_the_samplers_own_and_later_ones_come_from_a_seed() -> None:
    torch.manual_seed(5)
    plain = [i for batch in sampler() for i in batch]
    after = torch.get_rng_state()
    for seed, same in ((0, True), (0, True), (1, False)):
        torch.manual_seed(5)
        flat = [i for step in drawn(IndexStream(sampler(), seed=seed)) for i in step]
        assert flat[:12] == plain
        assert sorted(flat[12:]) == list(range(12))
        assert torch.equal(torch.get_rng_state(), after)  # as if there had been one pass
        if same:
            first = flat
        else:
            assert flat != first


def test_generators_of_the_sampler_are_put_back() -> None:
    own = sampler(seed=3)
    generator = own.sampler.generator
    list(own)
    once = generator.get_state()
    generator.manual_seed(3)
    random.seed(1)
    before = RandomState.now()
    assert len(drawn(IndexStream(own, seed=0), factor=3)) == 3
    assert torch.equal(generator.get_state(), once)
    assert random.getstate() == before.python
    assert list(generators_of(own)) == ["1.RandomSampler"]


def test_a_distributed_sampler_makes_another_order_for_each_pass() -> None:
    own = DistributedSampler(range(16), num_replicas=2, rank=0, seed=1)
    own.set_epoch(3)
    flat = [i for step in drawn(IndexStream(BatchSampler(own, 4, False), seed=0)) for i in step]
    assert own.epoch == 3
    assert len(set(flat[8:])) == 8
    assert flat[:8] != flat[8:]


def test_a_place_is_found_again_by_index_alone() -> None:
    for factor in (1, 2, 5):
        torch.manual_seed(5)
        stream, places = IndexStream(sampler(), seed=0), []
        whole: list[Any] = []
        while (candidates := stream.draw(lambda size: factor * size)) is not None:  # noqa: B023
            whole.append(candidates)
            places.append(stream.position)
        for done, place in enumerate(places, start=1):
            torch.manual_seed(5)
            other = IndexStream(sampler(), seed=0)
            other.go_to(StreamPosition.from_plain(place.to_plain()))
            assert drawn(other, factor) == whole[done:]


def test_a_place_does_not_grow_with_the_epoch() -> None:
    stream = IndexStream(sampler(4096, 2), seed=0)
    for _ in range(900):
        stream.draw(lambda size: 2 * size)
    assert stream.position.sizes == ((2, 900),)


def test_a_sampler_that_runs_dry_is_named() -> None:
    once = iter([[0, 1], [2, 3]])
    stream = IndexStream(once, seed=0)
    assert stream.draw(lambda size: 2 * size) == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="stopped giving indices"):
        stream.draw(lambda size: 2 * size)
