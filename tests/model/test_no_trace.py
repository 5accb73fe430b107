from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn

from sifting.model.no_trace import no_trace
from tests.helpers.models import Net


class Counting(nn.Module):
    """Writes to one buffer and replaces another, in eval mode too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.last = x.mean(0)
        return x + torch.rand_like(x) + random.random() + np.random.rand()  # noqa: NPY002


def test_buffers_are_put_back_even_when_they_were_replaced() -> None:
    model = nn.Sequential(Counting(), nn.BatchNorm1d(3))
    before = {name: (buffer, buffer.clone()) for name, buffer in model.named_buffers()}
    with no_trace(model):
        model(torch.ones(4, 3))
    for name, buffer in model.named_buffers():
        assert buffer is before[name][0]
        assert torch.equal(buffer, before[name][1])


def test_every_random_stream_goes_on_as_if_nothing_had_happened() -> None:
    def draw() -> tuple[float, float, float]:
        return torch.rand(()).item(), random.random(), float(np.random.rand())  # noqa: NPY002

    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    want = draw()
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])  # noqa: NPY002
    model = Counting()
    with no_trace(model):
        model(torch.ones(4, 3))
        torch.manual_seed(99)
    assert draw() == want


def test_modes_come_back_one_by_one_also_after_an_error() -> None:
    model = Net()
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]

    def fails() -> None:
        with no_trace(model):
            assert not any(module.training for module in model.modules())
            raise RuntimeError("broken sample")

    with pytest.raises(RuntimeError, match="broken sample"):
        fails()
    assert [module.training for module in model.modules()] == modes
    assert torch.is_grad_enabled()


class Quantised(nn.Module):
    """As bitsandbytes' 4-bit layer does on a CPU: it rounds its weights for inference, and keeps them so."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.training:
            self.weight.data = self.weight.data.bfloat16().float()
        return x * self.weight


@pytest.mark.parametrize("training", [True, False])
def test_layers_that_pack_their_weights_for_inference_are_not_made_to(
    monkeypatch: pytest.MonkeyPatch, training: bool
) -> None:
    monkeypatch.setattr(Quantised, "__module__", "bitsandbytes.nn.modules")
    layer, dropout = Quantised().train(training), nn.Dropout()
    before = layer.weight.clone()
    x = torch.ones(4, 3)
    with no_trace(nn.Sequential(layer, dropout)):
        assert not dropout.training
        assert torch.equal(dropout(layer(x)), x * before)
    assert layer.training is training
    assert torch.equal(layer.weight, before)


def test_a_cache_built_inside_can_be_trained_through_afterwards() -> None:
    class Lazy(nn.Module):
        table: torch.Tensor | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.table is None:
                self.table = torch.ones(3)
            return x * self.table

    model = Lazy()
    with no_trace(model):
        model(torch.ones(3))
    x = torch.ones(3, requires_grad=True)
    model(x).sum().backward()
    assert x.grad is not None
