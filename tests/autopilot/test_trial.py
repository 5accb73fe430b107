"""What the autopilot may use of a training loop."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split

from sifting import Sifter, SiftingWarning
from sifting.autopilot.trial import Trial, read_held_out, trained_too
from tests.helpers.piloted import (
    BATCH,
    STEPS,
    Points,
    fingerprint,
    looking,
    make_model,
    train,
)
from tests.helpers.piloted import (
    held_out as held_out_batches,
)

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
        (
            {"loss": lambda batch: batch, "optimizer": SGD},
            TypeError,
            r"loss=<lambda>\(batch\) cannot",
        ),
        ({"held_out": []}, ValueError, "holds no batch"),
        ({"held_out": DataLoader(TensorDataset(torch.zeros(0)))}, ValueError, "holds no batch"),
        (
            {"held_out": torch.zeros(9, 3)},
            TypeError,
            r"held_out=\(9, 3\): .*: \[batch\] where it is",
        ),
        ({"held_out": {"x": torch.zeros(9, 3)}}, TypeError, r"held_out=\['x'\] \(9, 3\): give"),
        ({"held_out": "test"}, TypeError, "held_out='test': give batches"),
        (
            {"held_out": TensorDataset(torch.zeros(9))},
            TypeError,
            r"as DataLoader\(data, batch_size\) is",
        ),
    ],
)
def test_bad_trials_are_named(given: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Trial(**given)


def test_an_optimizer_of_another_model_is_refused() -> None:
    trial = Trial(loss=lambda model, batch: model(batch), optimizer=SGD)
    with pytest.raises(ValueError, match="has no parameter of this Sequential: give the one that"):
        Sifter(make_model(), trial=trial)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda model, batch: model(batch[0]).sum(1), r"returned \(2,\): give a function"),
        (lambda model, batch: 0.5, "returned 0.5: give a function"),
        (lambda model, batch: (model(batch[0]).sum(), 1), r"returned \[0\] \(\), \[1\] 1: give"),
    ],
)
def test_a_loss_that_is_no_scalar_fails_with_the_first_step(loss: Any, message: str) -> None:
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trial = Trial(held_out=held_out_batches(), updates=STEPS, loss=loss, optimizer=optimizer)
    sifter = looking(Sifter(model, trial=trial), 20)
    batches = train(model, sifter(DataLoader(Points(), BATCH)), optimizer=optimizer)
    next(batches)
    with pytest.raises(TypeError, match=message):
        next(batches)


def test_to_look_at_a_loss_leaves_no_trace() -> None:
    """Also where it raises: some losses cannot be had of two samples, or in eval mode."""
    found = []
    for fails in (None, False, True):
        torch.manual_seed(3)
        model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def loss(model: nn.Module, batch: Any, fails: bool | None = fails) -> Tensor:
            value = F.cross_entropy(model.train()(batch[0] + torch.rand(8)), batch[1])
            if fails:
                raise RuntimeError("too few samples")
            return value

        more: dict[str, Any] = {} if fails is None else {"loss": loss, "optimizer": optimizer}
        trial = Trial(held_out=held_out_batches(), updates=STEPS, **more)
        sifter = looking(Sifter(model, trial=trial), 20)
        loader = DataLoader(Points(), BATCH, shuffle=True)
        for _ in train(model, sifter(loader), optimizer=optimizer, steps=10):
            pass
        found.append([*fingerprint(model), torch.rand(3)])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


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


def test_parts_of_one_data_set_are_trained_too_where_they_overlap() -> None:
    whole = TensorDataset(torch.zeros(20, 1))
    some, others = random_split(whole, [5, 15])
    assert not trained_too(DataLoader(some), DataLoader(others))
    assert trained_too(DataLoader(some), DataLoader(whole))
    assert trained_too(DataLoader(whole), DataLoader(others))
    inner = Subset(others, [0, 3])  # a part of a part
    assert not trained_too(DataLoader(inner), DataLoader(some))
    assert trained_too(DataLoader(Subset(whole, [others.indices[3]])), DataLoader(inner))
