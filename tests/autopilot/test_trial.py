"""What the autopilot may use of a training loop."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter, SiftingWarning
from sifting.autopilot.trial import Trial, read_held_out, trained_too
from tests.helpers.piloted import make_model

SGD = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"updates": 0}, ValueError, "updates=0: give the number"),
        ({"updates": True}, ValueError, "updates=True"),
        ({"loss": lambda m, b: m(b)}, ValueError, "optimizer= is missing"),
        ({"optimizer": SGD}, ValueError, "loss= is missing"),
        ({"held_out": 3}, TypeError, "held_out=3: give batches"),
        ({"accumulate": 0}, ValueError, "accumulate=0: give the number of batches"),
        ({"clip": 0.0}, ValueError, "clip=0.0 must be above 0"),
        ({"clip": "1"}, ValueError, "clip='1' must be above 0"),
        ({"loss": 5, "optimizer": SGD}, TypeError, "loss=5: give a function"),
        ({"loss": print, "optimizer": nn.ReLU()}, TypeError, "optimizer=ReLU: give the torch"),
    ],
)
def test_bad_trials_are_named(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Trial(**given)


def test_no_more_held_out_samples_are_read_than_wanted() -> None:
    read: list[int] = []

    def batches() -> Iterator[list[int]]:
        for number in range(100):
            read.append(number)
            yield [number, number]

    assert read_held_out(batches(), most=5, size=len) == [[0, 0], [1, 1], [2, 2]]
    assert read == [0, 1, 2]
    assert read_held_out([[], [], []], most=2, size=len) == [[], []], "empty ones end it too"


@pytest.mark.parametrize("cost", [-0.1, float("nan"), float("inf"), True, "0.05"])
def test_a_cost_that_is_no_share_of_a_step_is_refused(cost: Any) -> None:
    with pytest.raises(ValueError, match="cost="):
        Trial(cost=cost)


def test_held_out_samples_that_are_plainly_trained_are_said() -> None:
    data = TensorDataset(torch.randn(32, 8), torch.randint(0, 3, (32,)))
    loader = DataLoader(data, batch_size=8)
    for held_out in (loader, DataLoader(data, batch_size=4)):
        sifter = Sifter(make_model(), trial=Trial(held_out=held_out, updates=40))
        with pytest.warns(SiftingWarning, match="held_out= is the data that is trained"):
            sifter(loader)
    other = TensorDataset(*data.tensors)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Sifter(make_model(), trial=Trial(held_out=DataLoader(other), updates=40))(loader)
        Sifter(make_model(), trial=Trial(updates=40))(loader)
    marked = [SimpleNamespace(_fingerprint=mark) for mark in ("a", "a", "b")]
    assert trained_too(marked[0], marked[1])
    assert not trained_too(marked[0], marked[2])
