"""How often a choice waits for the device, counted on tensors that pretend to be on one."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter
from sifting.data.tree import leaves
from sifting.exits.scoring import Scorer
from tests.helpers.models import Net

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")

# What cannot be answered before the device is done with all that it was given.
READS = (
    *(Tensor.item, Tensor.tolist, Tensor.cpu, Tensor.numpy, Tensor.__bool__, Tensor.__int__),
    *(Tensor.__float__, Tensor.__index__, Tensor.nonzero, torch.nonzero, Tensor.masked_select),
    *(torch.masked_select, Tensor.unique, torch.unique, Tensor.equal, torch.equal),
    *(torch.allclose, Tensor.allclose),
)
LEAVES = (Tensor.cpu, Tensor.tolist, Tensor.item, Tensor.numpy)


class OnDevice(Tensor):
    """A tensor of the CPU that counts what would make the host wait, were it on another device."""

    waits: ClassVar[Counter[tuple[str, str]]] = Counter()

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        inputs = [leaf for leaf in leaves(list(args)) if isinstance(leaf, Tensor)]
        masked = func is Tensor.__getitem__ and any(leaf.dtype == torch.bool for leaf in inputs[1:])
        if func in READS or masked:
            cls.waits[threading.current_thread().name[:7], func.__name__] += 1
        found = super().__torch_function__(func, types, args, kwargs or {})
        return found.as_subclass(Tensor) if func is Tensor.cpu else found


def waits(monkeypatch: pytest.MonkeyPatch, **options: Any) -> tuple[Counter[str], Counter[str]]:
    """Waits of one step, of the loop and of the thread beside it: from one batch to the next."""
    moved = Scorer.moved

    def pretend(self: Scorer, batch: Any) -> Any:
        x, y = moved(self, batch)
        return x.as_subclass(OnDevice), y.as_subclass(OnDevice)

    monkeypatch.setattr(Scorer, "moved", pretend)
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 5, (64,)))
    net = Net()
    sifter = Sifter(net, audit_every=0, **options)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for step, (x, y) in enumerate(sifter(DataLoader(data, 8))):
        sifter.wait()
        if step == 6:
            break
        OnDevice.waits.clear()
        sifter.observer._compares = False  # of its own: some steps of the first 256
        F.cross_entropy(net(x), y).backward()
        optimizer.step()
    loop, beside = Counter[str](), Counter[str]()
    for (thread, name), count in OnDevice.waits.items():
        (beside if thread == "sifting" else loop)[name] += count
    return loop, beside


@pytest.mark.parametrize(
    "options", [{"exit": 1, "score": "loss"}, {"exit": "last"}, {"exit": "tuned"}], ids=str
)
def test_how_often_a_step_waits_for_the_device(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, _ = waits(monkeypatch, **options)
    assert loop == {"cpu": 1}  # the scores


@pytest.mark.parametrize("options", [{"exit": 1, "score": "loss"}, {"exit": "tuned"}], ids=str)
def test_beside_the_step_the_loop_never_waits(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, beside = waits(monkeypatch, ahead=1, **options)
    assert loop == {}
    assert beside == {"cpu": 1}
