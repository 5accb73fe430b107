"""Stacks whose blocks do not simply chain, against forwards written out by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sifting import Sifter
from sifting.model.find import find_stack
from sifting.model.stack import StackError
from sifting.model.wiring import Wiring, broken_link, steps_of

WIDTH, CLASSES = 8, 3


class Looped(nn.Module):
    """Stem, blocks, a norm and a head; what is done with a block is said by `step`.

    `step(model, i, h, block)` gives the hidden state after block i.
    """

    def __init__(
        self,
        step: Callable[[Looped, int, Tensor, nn.Module], Tensor],
        *,
        depth: int = 4,
        zero: bool = False,
        final: bool = True,
    ) -> None:
        super().__init__()
        self.step, self.final = step, final
        self.stem = nn.Linear(5, WIDTH)
        self.blocks = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(depth)])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(depth)])
        self.batch_norms = nn.ModuleList([nn.BatchNorm1d(WIDTH) for _ in range(depth)])
        self.gates = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(depth)])
        self.scales = nn.ParameterList(
            [nn.Parameter(torch.zeros(()) if zero else torch.rand(())) for _ in range(depth)]
        )
        self.gammas = nn.Parameter(torch.rand(depth, WIDTH))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for i, block in enumerate(self.blocks):
            h = self.step(self, i, h, block)
        return self.head(self.norm(h) if self.final else h)

    def logits_at(self, x: Tensor, k: int) -> Tensor:
        """The reference: the loop is left after k blocks."""
        h = self.stem(x)
        for i, block in enumerate(list(self.blocks)[:k]):
            h = self.step(self, i, h, block)
        return self.head(self.norm(h) if self.final else h)


def in_place(m: Looped, i: int, h: Tensor, block: nn.Module) -> Tensor:
    h = h.clone() if i == 0 else h
    h += block(h)
    return h


def highway(m: Looped, i: int, h: Tensor, block: nn.Module) -> Tensor:
    gate = torch.sigmoid(m.gates[i](h))
    return gate * block(h) + (1 - gate) * h


KEPT: dict[str, Callable[[Looped, int, Tensor, nn.Module], Tensor]] = {
    "chain": lambda m, i, h, b: b(h),
    "chain_copied": lambda m, i, h, b: b(h).clone(),
    "added": lambda m, i, h, b: h + b(h),
    "added_in_place": in_place,
    "scaled": lambda m, i, h, b: h + 0.5 * b(h),
    "scaled_by_a_parameter": lambda m, i, h, b: h + m.scales[i] * b(h),
    "scaled_by_channel": lambda m, i, h, b: h + m.gammas[i] * b(h),
    "subtracted": lambda m, i, h, b: h - b(h),
    "gated": lambda m, i, h, b: h + torch.sigmoid(m.gates[i](h)) * b(h),
    "modulated": lambda m, i, h, b: h * (1 + b(h)),
    "highway": highway,
    "normed_before": lambda m, i, h, b: h + b(m.norms[i](h)),
    "activated": lambda m, i, h, b: F.gelu(b(h)),
    "activated_in_place": lambda m, i, h, b: F.relu_(b(h)),
    "silu_in_place": lambda m, i, h, b: F.silu(b(h), inplace=True),
    "dropped": lambda m, i, h, b: h + F.dropout(b(h), 0.5, m.training),
    "normed_by_one": lambda m, i, h, b: m.norm(b(h)),
}


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("final", [True, False], ids=["normed", "bare"])
@pytest.mark.parametrize("name", KEPT)
def test_the_state_after_block_k_reaches_the_head(name: str, final: bool, depth: int) -> None:
    model = Looped(KEPT[name], depth=depth, final=final).eval()
    x, y = torch.randn(6, 5), torch.randint(0, CLASSES, (6,))
    for k in range(1, depth + 1):
        with torch.no_grad():
            want = F.cross_entropy(model.logits_at(x, k), y, reduction="none")
        got = Sifter(model, exit=k, score="loss", stack="blocks").score((x, y))
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, msg=f"{name} at exit {k}")


REFUSED: dict[str, Callable[[Looped, int, Tensor, nn.Module], Tensor]] = {
    "normed_after": lambda m, i, h, b: m.norms[i](h + b(h)),
    "normed_after_scaled": lambda m, i, h, b: m.norms[i](h + 0.5 * b(h)),
    "normed_between": lambda m, i, h, b: m.norms[i](b(h)),
    "batch_normed": lambda m, i, h, b: F.relu(m.batch_norms[i](b(h))),
    "halved": lambda m, i, h, b: 0.5 * h + b(h),
    "activated_sum": lambda m, i, h, b: torch.tanh(h + b(h)),
    "and_a_gate_network": lambda m, i, h, b: h + b(h) + m.gates[i](h),
}


@pytest.mark.parametrize("depth", [2, 4])
@pytest.mark.parametrize("name", REFUSED)
def test_where_nothing_keeps_the_state_the_stack_is_refused(name: str, depth: int) -> None:
    """Fresh norms do nothing yet: that must not be taken for a state that stays."""
    model = Looped(REFUSED[name], depth=depth)
    batch = torch.randn(6, 5), torch.randint(0, CLASSES, (6,))
    with pytest.raises(StackError, match=r"the stack 'blocks' \(. × Linear\): block 2 does not"):
        Sifter(model, exit=1, score="loss", stack="blocks").score(batch)


def test_scales_that_start_at_zero_are_not_mistaken() -> None:
    """With every scale at zero, each block is given the same, as parallel blocks would be."""
    model = Looped(KEPT["scaled_by_a_parameter"], zero=True).eval()
    batch = torch.randn(6, 5), torch.randint(0, CLASSES, (6,))
    sifter = Sifter(model, exit=2, score="loss", stack="blocks")
    sifter.score(batch)
    with torch.no_grad():
        for scale in model.scales:
            scale.fill_(0.7)
        want = F.cross_entropy(model.logits_at(batch[0], 2), batch[1], reduction="none")
    torch.testing.assert_close(sifter.score(batch), want, rtol=1e-5, atol=1e-5)


def test_the_model_is_left_as_it_was() -> None:
    model = Looped(KEPT["added"])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modules, stream = list(model.modules()), torch.get_rng_state()
    stack = find_stack(model, "blocks")
    x = torch.randn(2, 5)
    torch.set_rng_state(stream)
    with torch.no_grad():
        stack.check_chain(lambda: model(x))
    assert stack.wiring.hand_on == "zeros"
    assert torch.equal(torch.get_rng_state(), stream)
    assert [id(m) for m in model.modules()] == [id(m) for m in modules]
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in modules)


def test_the_hidden_state_is_the_sum_and_not_what_was_added_last() -> None:
    model = Looped(KEPT["added"]).eval()
    x = torch.randn(2, 5)
    stack = find_stack(model, "blocks")
    with torch.no_grad():
        stack.check_chain(lambda: model(x))
        with stack.truncated(2) as way:
            model(x)
        h = model.stem(x)
        for block in list(model.blocks)[:2]:
            h = h + block(h)
    torch.testing.assert_close(way.hidden, h)


def test_blocks_with_tuples_and_more_arguments_are_added_too() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH)

        def forward(self, time: Tensor, *, hidden: Tensor) -> tuple[Tensor, Tensor]:
            return self.linear(hidden) * time, time

    class Timed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = nn.ModuleList([Pair() for _ in range(3)])
            self.head = nn.Linear(WIDTH, CLASSES)

        def forward(self, x: Tensor, depth: int = 3) -> Tensor:
            time = x.mean(dim=1, keepdim=True).expand_as(x)
            for block in self.blocks[:depth]:
                x = x + block(time, hidden=x)[0]
            return self.head(x)

    model = Timed().eval()
    x, y = torch.randn(4, WIDTH), torch.randint(0, CLASSES, (4,))
    with torch.no_grad():
        want = F.cross_entropy(model(x, depth=1), y, reduction="none")
    got = Sifter(model, exit=1, score="loss").score((x, y))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


class Towers(nn.Module):
    """Two alike networks on two inputs, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.towers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(2)])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.towers[0](x) * self.towers[1](x.flip(1)))


class Experts(nn.Module):
    """A router's weighted sum over experts in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 3)
        self.members = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(3)])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(dim=1)
        return self.head(x + sum(weights[:, i : i + 1] * m(x) for i, m in enumerate(self.members)))


@pytest.mark.parametrize("stack", [None, "towers"])
def test_two_towers_are_no_stack(stack: str | None) -> None:
    with pytest.raises(StackError, match="does not take the output of block 1"):
        Sifter(Towers(), exit=1, score="loss", stack=stack).score(
            (torch.randn(4, WIDTH), torch.zeros(4).long())
        )


@pytest.mark.parametrize("stack", [None, "members"])
def test_experts_are_no_stack(stack: str | None) -> None:
    with pytest.raises(StackError, match="does not take the output of block 1"):
        Sifter(Experts(), exit=1, score="loss", stack=stack).score(
            (torch.randn(4, WIDTH), torch.zeros(4).long())
        )


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("added", [True, False])
def test_blocks_behind_checkpointing(added: bool, reentrant: bool) -> None:
    def step(m: Looped, i: int, h: Tensor, block: nn.Module) -> Tensor:
        out = checkpoint(block, h, use_reentrant=reentrant)
        return h + out if added else out

    model = Looped(step).eval()
    x, y = torch.randn(6, 5), torch.randint(0, CLASSES, (6,))
    with torch.no_grad():
        want = F.cross_entropy(model.logits_at(x, 2), y, reduction="none")
    got = Sifter(model, exit=2, score="loss", stack="blocks").score((x, y))
    torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["added", "highway", "normed_before", "activated"])
def test_low_precision(name: str) -> None:
    model = Looped(KEPT[name]).eval().bfloat16()
    x, y = torch.randn(6, 5).bfloat16(), torch.randint(0, CLASSES, (6,))
    with torch.no_grad():
        want = F.cross_entropy(model.logits_at(x, 2).float(), y, reduction="none")
    got = Sifter(model, exit=2, score="loss", stack="blocks").score((x, y))
    torch.testing.assert_close(got.float(), want, rtol=2e-2, atol=2e-2)


def test_a_chain_hands_each_output_to_the_next_block() -> None:
    blocks = [nn.Linear(3, 3) for _ in range(3)]

    def run() -> torch.Tensor:
        x = torch.randn(2, 3)
        for block in blocks:
            x = block(x)
        return x

    with torch.no_grad():
        steps = steps_of([(block, block) for block in blocks], run)
    assert len(steps) == 3
    assert broken_link(steps, itself=True) is None

    def broken() -> torch.Tensor:
        x = blocks[0](torch.randn(2, 3))
        return blocks[2](blocks[1](x * 2))

    with torch.no_grad():
        steps = steps_of([(block, block) for block in blocks], broken)
    assert broken_link(steps, itself=True) is not None
    assert isinstance(Wiring(), Wiring)
