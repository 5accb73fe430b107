"""Everything that training a piece changes, kept and put back."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sifting.autopilot.aside import Aside
from tests.helpers.states import same

OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "a tensor as rate": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.1), capturable=False),
}


def make_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.2), nn.Linear(6, 3))


def update(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss = F.cross_entropy(model(torch.randn(8, 4)), torch.randint(0, 3, (8,)))
    loss.backward()
    optimizer.step()


def everything(model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    return copy.deepcopy(
        (
            model.state_dict(),
            optimizer.state_dict(),
            [p.grad for p in model.parameters()],
            [m.training for m in model.modules()],
        )
    )


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 2])
def test_everything_is_as_it_was_to_the_last_bit(kind: str, steps: int) -> None:
    model = make_model()
    optimizer = OPTIMIZERS[kind](model.parameters())
    for _ in range(steps):
        update(model, optimizer)
    before = everything(model, optimizer)
    aside = Aside(model, optimizer)
    drawn = torch.rand(()), random.random()
    model.eval()
    optimizer.param_groups[0]["lr"] = 0.7
    optimizer.param_groups[0]["mine"] = 1
    for _ in range(3):
        update(model, optimizer)
    aside.restore()
    assert same(everything(model, optimizer), before)
    assert (torch.rand(()), random.random()) == drawn
    assert aside.rates == [pytest.approx(0.1)]


def test_whoever_holds_a_tensor_sees_its_old_values_again() -> None:
    model = make_model()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    update(model, optimizer)
    weight, mean = model[0].weight, model[1].running_mean
    moment = optimizer.state[weight]["exp_avg"]
    values = [tensor.detach().clone() for tensor in (weight, mean, moment)]
    aside = Aside(model, optimizer)
    update(model, optimizer)
    aside.restore()
    assert model[0].weight is weight
    assert model[1].running_mean is mean
    assert optimizer.state[weight]["exp_avg"] is moment
    for tensor, value in zip((weight, mean, moment), values, strict=True):
        assert torch.equal(tensor, value)


def test_hooks_of_the_optimizer_are_mute_in_between_also_after_an_error() -> None:
    model = make_model()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    heard: list[int] = []
    optimizer.register_step_post_hook(lambda *_: heard.append(1))
    before = everything(model, optimizer)
    with pytest.raises(KeyError), Aside(model, optimizer).used():
        update(model, optimizer)
        raise KeyError
    assert heard == []
    assert same(everything(model, optimizer), before)
    update(model, optimizer)
    assert heard == [1]


def test_generators_of_a_data_set_are_put_back() -> None:
    data = type("Data", (), {})()
    data.own = random.Random(3)
    model = make_model()
    aside = Aside(model, OPTIMIZERS["sgd"](model.parameters()), data)
    first = data.own.random()
    aside.restore()
    assert data.own.random() == first


class Counting(nn.Module):
    """A layer that keeps what it has seen beside its buffers, and draws from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.forwards, self.mean = 0, torch.zeros(4)
        self.noise = torch.Generator().manual_seed(0)

    def forward(self, x_BF: torch.Tensor) -> torch.Tensor:
        self.forwards += 1
        self.last = float(x_BF.detach().mean())
        self.mean += x_BF.detach().mean(dim=0)
        return x_BF + self.mean + torch.randn(x_BF.shape, generator=self.noise)


def test_what_modules_keep_in_attributes_of_their_own_is_put_back() -> None:
    counting = Counting()
    model = nn.Sequential(counting, make_model())
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    mean, stream = counting.mean, counting.noise.get_state()
    aside = Aside(model, optimizer)
    for _ in range(2):
        update(model, optimizer)
        aside.restore()
    assert counting.forwards == 0
    assert not hasattr(counting, "last")
    assert counting.mean is mean
    assert not mean.any()
    assert torch.equal(counting.noise.get_state(), stream)
