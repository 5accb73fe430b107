"""Stand-ins for blocks, for the length of one forward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sifting.model.gate import Gate, replaced, with_forward


def test_a_stand_in_does_as_it_is_told_and_the_block_answers_the_rest() -> None:
    block = nn.Linear(2, 3)
    seen: list[Any] = []

    def act(module: nn.Module, args: Any, kwargs: Any) -> Any:
        seen.append((module, kwargs))
        return args[0] + 1

    gate = Gate(block, act)
    assert gate(torch.zeros(2), scale=3).tolist() == [1.0, 1.0]
    assert seen == [(block, {"scale": 3})]
    assert gate.out_features == 3
    assert list(gate.parameters()) == [], "the block is not its own"
    with pytest.raises(AttributeError):
        _ = gate.nothing_of_the_kind


def test_the_container_holds_what_it_held_also_after_an_error() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    held = list(model)
    with (
        pytest.raises(ZeroDivisionError),
        replaced(model, {"0": lambda b, a, k: a[0], "1": lambda b, a, k: 1 / 0}),
    ):
        assert [type(member) for member in model] == [Gate, Gate]
        model(torch.zeros(4, 2))
    assert list(model) == held


def test_a_forward_of_its_own_is_put_back() -> None:
    module = nn.Linear(2, 2)
    with with_forward(module, lambda x: x):
        assert module(torch.ones(2)).tolist() == [1.0, 1.0]
    assert "forward" not in module.__dict__
    own = module.forward = lambda x: x + 5  # type: ignore[method-assign]
    with with_forward(module, lambda x: x):
        pass
    assert module.forward is own
