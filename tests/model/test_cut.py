"""Where a forward can begin in the middle, and where it cannot."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.model.cut import BlockCut, Cut, ModuleCut, frozen_place, noting, trained_through
from sifting.model.find import find_stack
from tests.helpers.models import Net


class Conv(nn.Module):
    """A network of stages, with work between them, and a layer that is used before and after the place."""

    def __init__(self, *, skip: bool = False) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.first = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(4, 5)
        self.skip = skip

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x), inplace=True)
        before = self.relu(x)
        x = self.relu(self.first(before))
        x = self.second(x)
        if self.skip:
            x = x + before
        return self.head(x.mean((2, 3)))


def made(path: str = "first", **options: Any) -> tuple[Conv, Cut, Tensor]:
    torch.manual_seed(0)
    model, images = Conv(**options).eval(), torch.randn(4, 3, 8, 8)
    return model, ModuleCut(model, path), images


def test_a_forward_begins_behind_a_module_and_runs_nothing_before_it() -> None:
    model, cut, images = made()
    whole = model(images)
    assert cut.unfit(lambda: model(images)) is None
    ran: list[str] = []
    for name, module in model.named_children():
        module.register_forward_hook(lambda *_, name=name: ran.append(name))  # type: ignore[misc]
    hidden = cut.stopped(lambda: model(images))
    ran.clear()
    with cut.begun(hidden[1:3].clone()):
        found = model(images[1:3])
    assert torch.allclose(found, whole[1:3], atol=1e-6)
    assert ran == ["relu", "second", "head"]  # the second use of the layer, and what comes after
    assert not any(type(module).__name__ == "Gate" for module in model.modules())
    assert torch.equal(model(images), whole)


def test_what_looks_back_is_refused() -> None:
    model, cut, images = made(skip=True)
    assert "also looks at what was computed before it" in str(cut.unfit(lambda: model(images)))


class Mixed(nn.Module):
    """A probe on a mixture of all blocks, as speech models have it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        states = []
        for block in self.blocks:
            x = block(x)
            states.append(x)
        return self.head(torch.stack(states).mean(0))


def test_a_head_on_a_mixture_of_all_blocks_is_refused() -> None:
    model = Mixed()
    cut, x = BlockCut(model, find_stack(model), 2), torch.randn(3, 4)
    assert "also looks at what was computed before it" in str(cut.unfit(lambda: model(x)))


def test_a_chain_can_begin_behind_each_block() -> None:
    net = Net().eval()
    x = torch.randn(4, 8)
    for k in (1, 2, 4):
        cut = BlockCut(net, find_stack(net), k)
        assert cut.unfit(lambda: net(x)) is None
        with cut.begun(cut.stopped(lambda: net(x))):
            begun = net(x)
        assert torch.equal(begun, net(x))


def test_modules_that_put_out_more_than_one_tensor_are_refused() -> None:
    class Pair(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return x, x

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair, self.layer, self.head = Pair(), nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.layer(self.pair(x)[1]))

    model, x = Model(), torch.randn(3, 4)
    assert "Pair before it puts out more" in str(ModuleCut(model, "layer").unfit(lambda: model(x)))


@pytest.mark.parametrize("forced", [False, True])
def test_inputs_that_require_gradients_are_told_from_parameters_that_do(forced: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3), nn.Linear(3, 2))
    model[:2].requires_grad_(False)
    if forced:
        model[0].register_forward_hook(lambda module, args, output: output.requires_grad_())
    x = torch.randn(2, 3)

    def through() -> tuple[bool, bool]:
        ran: dict[nn.Module, None] = {}
        with noting(model, ran):
            hidden = ModuleCut(model, "1").stopped(lambda: model(x))
        return hidden.requires_grad, trained_through([hidden], ran, model)

    assert through() == (forced, False)
    model[1].bias.requires_grad_()
    assert through() == (True, True)
    model[1].bias.requires_grad_(False)
    scale = nn.Parameter(torch.ones(3))
    model.register_parameter("scale", scale)  # of no module that has run
    model[0].register_forward_hook(lambda module, args, output: output * scale)
    assert through() == (True, True)


def test_the_last_place_before_anything_is_trained() -> None:
    model, _, images = made()
    assert frozen_place(model, lambda: model(images)) is None
    for part, wanted in ((model.stem, "relu"), (model.first, "first"), (model.second, "second")):
        part.requires_grad_(False)
        assert frozen_place(model, lambda: model(images)) == wanted
