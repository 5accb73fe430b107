"""Samples of a loader's data set, drawn by index beside the loader."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from sifting.data import by_index
from sifting.data.by_index import IndexDraws, OwnStreams, namer, sampled


def test_none_comes_twice_before_all_have_come_and_the_seed_decides() -> None:
    draws = IndexDraws(DataLoader(range(10), batch_size=2, shuffle=True))
    draws.begin(seed=3)
    first = [draws.indices(4) for _ in range(5)]
    flat = [i for indices in first for i in indices]
    assert sorted(flat[:10]) == sorted(flat[10:]) == list(range(10))
    draws.begin(seed=3)
    assert [draws.indices(4) for _ in range(5)] == first
    draws.begin(seed=4)
    assert [draws.indices(4) for _ in range(5)] != first


def test_of_very_many_single_ones_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(by_index, "FEW", 5)
    draws = IndexDraws(DataLoader(range(8), batch_size=2))
    draws.begin(seed=0)
    assert set(draws.indices(6)) <= set(range(8))


def test_samples_are_read_and_collated_as_the_loader_would() -> None:
    class Whole(list[int]):
        def __getitems__(self, indices: list[int]) -> list[int]:
            return [-self[i] for i in indices]

    plain = IndexDraws(DataLoader([10, 20, 30], batch_size=2, collate_fn=tuple))
    assert plain.read([2, 0]) == (30, 10)
    assert IndexDraws(DataLoader(Whole([10, 20, 30]), collate_fn=tuple)).read([2, 0]) == (-30, -10)


def test_where_the_sampler_does_not_tell_what_was_trained_is_drawn_from() -> None:
    data = range(8)
    told: list[Any] = [
        DataLoader(data, sampler=SubsetRandomSampler([5, 6])),
        DataLoader(data, batch_sampler=BatchSampler(RandomSampler(data), 2, False)),
    ]
    assert [list(sampled(loader) or ()) for loader in told] == [[5, 6], list(range(8))]
    draws = IndexDraws(DataLoader(data, sampler=WeightedRandomSampler([1.0] * 8, 8)))
    assert list(draws.among) == []
    draws.note([torch.tensor(3), 4])
    assert draws.seen == [3, 4]
    draws.begin(seed=0)
    assert sorted(map(int, draws.indices(2))) == [3, 4]
    known = IndexDraws(told[1])
    known.note([1])
    assert known.seen == [], "it is known anyway"


def test_only_loaders_that_draw_by_index_have_draws() -> None:
    assert IndexDraws.of([1, 2]) is None
    assert IndexDraws.of(DataLoader(range(3))) is not None


class Transforms:
    def __init__(self) -> None:
        self.steps = [random.Random(1)]
        self.numpy = np.random.default_rng(2)
        self.legacy = np.random.RandomState(3)
        self.torch = torch.Generator().manual_seed(4)
        self.data = list(range(1000))  # long: data, not transforms

    def drawn(self) -> tuple[float, ...]:
        return (
            self.steps[0].random(),
            float(self.numpy.random()),
            float(self.legacy.rand()),
            float(torch.rand((), generator=self.torch)),
        )


def test_generators_that_a_data_set_holds_are_put_back() -> None:
    data = type("Data", (), {})()
    data.transforms = Transforms()
    data.itself = data
    streams = OwnStreams(data)
    first = data.transforms.drawn()
    assert data.transforms.drawn() != first
    streams.restore()
    assert data.transforms.drawn() == first


class Named:
    """A data set with a method of that name; of what is drawn, pairs alone are more than a name."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    def __len__(self) -> int:
        return 8

    def __getitem__(self, drawn: Any) -> Any:
        return drawn

    def sample_id(self, drawn: Any) -> Any:
        self.asked.append(drawn)
        return torch.tensor(drawn[0])


def test_a_data_set_is_asked_for_names_only_where_more_than_a_name_is_drawn() -> None:
    data: Any = Named()
    name = namer(DataLoader(data))
    assert name([3, np.int64(4), torch.tensor(5), "six"]) == [3, 4, 5, "six"]
    assert data.asked == []
    assert name([(3, "left"), (4, "right")]) == [3, 4]
