"""The loader that Hugging Face's Trainer iterates."""

from __future__ import annotations

import copy

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter
from sifting.integrations.trainer_loader import ResumedLoader, TrainLoader
from tests.helpers.models import Net


@pytest.fixture
def loader(net: Net) -> TrainLoader:
    data = TensorDataset(torch.randn(32, 8), torch.randint(0, 5, (32,)))
    return TrainLoader(Sifter(net, exit=1, score="loss"), DataLoader(data, batch_size=8))


def test_what_is_asked_of_it_the_trainers_own_loader_answers(loader: TrainLoader) -> None:
    assert loader.batch_size == 8
    assert loader.dataset is loader.loader.dataset
    with pytest.raises(AttributeError):
        _ = loader.nothing_of_the_kind
    assert not hasattr(copy.copy(loader).__class__.__new__(TrainLoader), "loader")


def test_its_length_is_that_of_a_whole_epoch_also_in_the_middle(loader: TrainLoader) -> None:
    batches = iter(loader)
    next(batches)
    assert len(loader) == 4
    batches.close()


def test_fetching_a_batch_is_not_yet_a_step(loader: TrainLoader, net: Net) -> None:
    for _ in loader:
        assert not net._forward_hooks, "the Trainer's training_step says when a step runs"


def test_batches_that_were_trained_are_stood_in_for(loader: TrainLoader) -> None:
    told: list[str] = []
    resumed = ResumedLoader(loader, 2, first=lambda: told.append("fetches"))
    batches = iter(resumed.dataset)
    assert [next(batches), next(batches)] == [None, None]
    assert told == []
    assert next(batches) is not None
    assert told == ["fetches"]
    assert len(list(batches)) == 3
    assert resumed.collate_fn("as it is") == "as it is"
