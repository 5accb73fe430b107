from __future__ import annotations

import pytest
import torch
from torch import nn

from sifting import Sifter
from sifting.model.find import find_stack
from sifting.model.stack import StackError
from tests.helpers.models import Net


def test_out_of_range_names_the_range(net: Net) -> None:
    stack = find_stack(net)
    with (
        pytest.raises(ValueError, match=r"exit=5 is out of range: the stack 'blocks' has 4 blocks"),
        stack.truncated(5),
    ):
        pass


def test_truncation_leaves_the_model_as_it_was(net: Net) -> None:
    net.eval()
    x = torch.randn(3, 8)
    before = net(x)
    modules = list(net.modules())
    hooks = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in modules]
    with pytest.raises(KeyError), find_stack(net).truncated(2) as way:
        torch.testing.assert_close(net(x), net.logits_at(x, 2))
        assert way.hidden.shape == (3, 16)
        raise KeyError
    assert [id(m) for m in net.modules()] == [id(m) for m in modules]
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in modules] == hooks
    assert torch.equal(net(x), before)


def test_a_stack_that_does_not_run_is_reported(net: Net) -> None:
    with find_stack(net).truncated(1) as way:
        pass
    with pytest.raises(ValueError, match="did not run"):
        _ = way.hidden


class Towers(nn.Module):
    """Alike, side by side, and not a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(sum(tower(x) for tower in self.towers))


class Elsewhere(nn.Module):
    """Runs its blocks from a plain list, past their container."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
        self.own = list(self.blocks)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.own:
            x = block(x)
        return self.head(x)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Towers(), "block 2 does not take the output of block 1"),
        (Elsewhere(), "were not called through their container"),
        (
            nn.Sequential(
                *[nn.Conv2d(4, 4, 3, stride=2, padding=1) for _ in range(3)], nn.Flatten(1)
            ),
            "blocks 1 and 2 output different shapes",
        ),
    ],
    ids=["towers", "elsewhere", "strided"],
)
def test_what_only_looks_like_a_stack_is_refused(model: nn.Module, message: str) -> None:
    x = torch.randn(4, 4, 16, 16) if "shapes" in message else torch.randn(4, 8)
    with pytest.raises(StackError, match=message):
        Sifter(model, exit=1, score="loss").score((x, torch.zeros(4).long()))


def test_blocks_that_run_backwards_are_no_early_ones() -> None:
    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([nn.Linear(8, 8) for _ in range(3)])
            self.head = nn.Linear(8, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for i in (2, 1, 0):
                x = self.blocks[i](x)
            return self.head(x)

    with pytest.raises(StackError, match="runs its blocks in the order 3, 2, 1"):
        Sifter(Backwards(), exit=1, score="loss").score((torch.randn(4, 8), torch.zeros(4).long()))
