"""reuse=True: what scoring has computed of a frozen prefix is not computed again in training."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter, SiftingWarning, TunedExit
from sifting.model.call import Call
from sifting.model.prefix import Prefix
from sifting.model.stack import Stack
from tests.helpers.models import Net

STEPS = 6


def make_net(*, frozen: int = 2, dropout: float = 0.0) -> Net:
    torch.manual_seed(3)
    net = Net(width=32)
    for module in net.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.3
    for part in (net.embed, *net.blocks[:frozen]):
        part.requires_grad_(False)
    for block in net.blocks[:frozen]:
        block.dropout.p = dropout
    return net


def train(net: Net, change: Any = lambda x: x, steps: int = STEPS, **options: Any) -> Any:
    """A loop: its losses and gradients, and how often each block has run with gradients on."""
    generator = torch.Generator().manual_seed(1)
    data = TensorDataset(
        torch.randn(96, 8, generator=generator), torch.randint(0, 5, (96,), generator=generator)
    )
    sifter = Sifter(net, audit_every=0, **{"exit": 2, "score": "loss", **options})
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.1)
    ran: Counter[int] = Counter()
    for i, block in enumerate(net.blocks):
        block.register_forward_hook(
            lambda *_, i=i: ran.update([i]) if not sifter.scoring else None  # type: ignore[misc]
        )
    torch.manual_seed(5)
    found = []
    for step, (x, y) in enumerate(sifter(DataLoader(data, 8, shuffle=True))):
        loss = F.cross_entropy(net(change(x)), y)
        loss.backward()
        gradients = [p.grad.clone() for p in net.parameters() if p.grad is not None]
        found.append((x.clone(), loss.detach(), *gradients))
        optimizer.step()
        optimizer.zero_grad()
        if step == steps - 1:
            break
    return found, ran


def same(a: Any, b: Any) -> bool:
    return all(
        torch.allclose(x, y, rtol=1e-6, atol=1e-6)
        for one, other in zip(a, b, strict=True)
        for x, y in zip(one, other, strict=True)
    )


@pytest.mark.parametrize("exit", [{"exit": 2}, {"exit": 1}, {"exit": "blocks.1"}], ids=str)
def test_training_is_the_same_without_the_frozen_blocks(exit: dict[str, Any]) -> None:
    plain, ran_plainly = train(make_net(), **exit)
    found, ran = train(make_net(), reuse=True, **exit)
    assert same(plain, found)
    left_out = 1 if exit["exit"] == 1 else 2
    assert [ran[i] for i in range(4)] == [0] * left_out + [STEPS] * (4 - left_out)
    assert ran_plainly[0] == STEPS


def test_a_tuned_exit() -> None:
    plain, _ = train(make_net(), exit=TunedExit(2), score="entropy")
    found, ran = train(make_net(), exit=TunedExit(2), score="entropy", reuse=True)
    assert same(plain, found)
    assert ran[0] == ran[1] == 0


@pytest.mark.parametrize(
    "change",
    [lambda x: x.clone(), lambda x: x[:, :], lambda x: x.mul_(1.0), lambda x: x.flip(0)],
    ids=["copied", "viewed", "written", "turned"],
)
def test_other_tensors_than_were_handed_out_are_computed(change: Any) -> None:
    plain, _ = train(make_net(), change)
    found, ran = train(make_net(), change, reuse=True)
    assert same(plain, found)
    assert ran[0] == STEPS


def normed() -> Net:
    net = make_net()
    net.blocks[0] = nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 32)).requires_grad_(False)
    net.blocks[1] = nn.Sequential(nn.BatchNorm1d(32), nn.Linear(32, 32)).requires_grad_(False)
    return net


@pytest.mark.parametrize(
    ("net", "message"),
    [
        (
            lambda: make_net(dropout=0.3),
            r"first 2 blocks of 'blocks' draw random numbers .*\(dropout\)",
        ),
        (lambda: make_net(frozen=1), "parameters before block 3 of 'blocks' are trained"),
    ],
)
def test_where_training_computes_something_else_it_says_so(net: Any, message: str) -> None:
    plain, _ = train(net())
    with pytest.warns(SiftingWarning, match=f"reuse=True has no effect: .*{message}"):
        found, ran = train(net(), reuse=True)
    assert same(plain, found)
    assert ran[0] == STEPS


def test_batch_norm_in_training_is_not_reused_and_its_statistics_stay() -> None:
    reused = normed()
    stack = Stack("blocks", reused.blocks, (("0",), ("1",)), reused)
    prefix = Prefix(reused, stack, 2, Call())
    batch = (torch.randn(6, 8), torch.arange(6) % 5)
    before = {name: value.clone() for name, value in reused.state_dict().items()}
    assert "batch norm" in str(prefix.refused(batch))
    assert all(torch.equal(before[name], value) for name, value in reused.state_dict().items())
    reused.blocks.eval()
    assert prefix.refused(batch) is None


def test_what_is_left_is_the_model_as_it_was() -> None:
    net = make_net()
    blocks = list(net.blocks)
    with pytest.raises(ZeroDivisionError):
        train(net, lambda x: 1 // 0, reuse=True)
    handles = [module._forward_pre_hooks for module in net.modules()]
    assert not any(handles)
    assert list(net.blocks) == blocks

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if torch.is_grad_enabled():
                raise ArithmeticError("in the middle of a forward")
            return x

    net.norm = Broken()  # type: ignore[assignment]
    with pytest.raises(ArithmeticError):
        train(net, reuse=True)
    assert list(net.blocks) == blocks


def test_what_does_not_go_together_is_named() -> None:
    with pytest.raises(ValueError, match="reuse=True does not go with ahead=1"):
        Sifter(make_net(), exit=1, ahead=1, reuse=True)
    with pytest.raises(TypeError, match="reuse='yes'"):
        Sifter(make_net(), exit=1, reuse="yes")  # type: ignore[arg-type]
