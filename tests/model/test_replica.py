"""A copy of a model's modules over the same parameters."""

from __future__ import annotations

import copy
import functools
import types
from typing import Any

import pytest
import torch
from torch import nn

from sifting.model.replica import Replica, changing_hooks, deep_copy, modules_run, of_torch
from tests.helpers.models import Net

X = torch.randn(6, 8, generator=torch.Generator().manual_seed(0))


def test_the_copy_puts_out_what_the_model_does_in_eval_mode(net: Net) -> None:
    twin = Replica(net).model
    assert [id(p) for p in twin.parameters()] == [id(p) for p in net.parameters()]
    assert not any(module.training for module in twin.modules())
    assert net.training
    assert torch.equal(twin(X), copy.deepcopy(net).eval()(X))


def test_an_update_of_the_model_is_one_of_the_copy_at_once(net: Net) -> None:
    replica = Replica(net)
    before = replica.model(X)
    with torch.no_grad():
        net.head.weight += 1
    assert not torch.equal(replica.model(X), before)


def test_statistics_are_taken_over_when_asked_for(net: Net) -> None:
    replica = Replica(net)
    before = replica.model(X).detach()
    net(X)
    assert torch.equal(replica.model(X), before)
    replica.refresh()
    assert torch.equal(replica.model(X), copy.deepcopy(net).eval()(X))


def test_modules_that_are_exchanged_are_copied_anew(net: Net) -> None:
    replica = Replica(net)
    first = replica.twin(net.head)
    net.head = nn.Linear(16, 5)
    replica.refresh()
    assert replica.model.head.weight is net.head.weight
    assert replica.twin(net.head) is not first
    other = nn.Linear(1, 1)
    assert replica.twin(other) is other, "what is not of the model is itself"


class Referring(nn.Module):
    """Keeps its own module in other places too, and an attribute that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 2)
        self.by_name = {"a": [self.linear]}
        self.bound = self.linear.forward
        self.part = functools.partial(self.linear, input=torch.zeros(1, 2))
        self.log: list[int] = []
        self.scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.by_name["a"][0](x)


def test_modules_inside_of_attributes_are_the_copys_own() -> None:
    model = Referring()
    replica = Replica(model)
    twin: Any = replica.model
    assert twin.by_name["a"][0] is twin.linear is not model.linear
    assert twin.bound.__self__ is twin.linear
    assert twin.part.func is twin.linear
    assert twin.log is model.log, "what holds no module is the very object"
    model.scale = 3.0
    del model.log
    replica.refresh()
    assert twin.scale == 3.0
    assert not hasattr(twin, "log")


def test_hooks_of_the_user_stay_with_the_model_and_torchs_own_come_along() -> None:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)), nn.Linear(2, 2))
    seen: list[int] = []
    model[1].register_forward_hook(lambda *_: seen.append(1))
    twin = Replica(model).model
    torch.testing.assert_close(
        twin(torch.ones(1, 2)), copy.deepcopy(model).eval()(torch.ones(1, 2))
    )
    assert len(seen) == 1, "by the model's deep copy alone"


def test_script_modules_are_refused() -> None:
    scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"ahead=1: 1 is a .* of TorchScript"):
        Replica(nn.Sequential(nn.Linear(2, 2), scripted))


def test_hooks_that_change_something_are_named_and_put_back(net: Net) -> None:
    net.embed.register_forward_hook(lambda *_: None)
    changing = net.head.register_forward_hook(lambda m, a, out: out + 1)
    before = dict(net.head._forward_hooks)
    with changing_hooks(net) as found:
        net(X)
    (name,) = found
    assert name.startswith("'head' (")
    assert dict(net.head._forward_hooks) == before
    changing.remove()
    with changing_hooks(net) as found:
        net(X)
    assert found == []


def test_which_modules_run_is_noted(net: Net) -> None:
    with modules_run(net) as found:
        net(X)
    assert found[:3] == ["", "embed", "blocks.0"]
    assert not net.embed._forward_pre_hooks


def test_whose_a_hook_is() -> None:
    assert of_torch(functools.partial(torch.relu))
    assert of_torch(nn.Linear(1, 1).forward)
    assert not of_torch(Net().forward)


def test_a_forward_that_was_put_around_the_models_own_runs_the_copy(net: Net) -> None:
    """As TRL's fused head does: its closure holds the bound method that was there before."""
    own = net.eval().forward

    def around(self: nn.Module, x: torch.Tensor, *, plus: float = 1.0) -> torch.Tensor:
        return own(x) + plus

    net.forward = types.MethodType(around, net)  # type: ignore[method-assign]
    replica = Replica(net)
    with modules_run(net) as originals:
        found = replica.model(X)
    assert originals == []
    torch.testing.assert_close(found, own(X) + 1.0)
    assert own.__self__ is net


class Decorated:
    """A decorator that is an object, as Accelerate's for autocast; it will not be pickled or copied."""

    def __init__(self, function: Any) -> None:
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs) * 2

    def __getstate__(self) -> Any:
        raise TypeError("not to be copied")


@pytest.mark.parametrize("copied", [lambda net: Replica(net).model, deep_copy])
def test_so_it_does_where_several_were_put_around_it(net: Net, copied: Any) -> None:
    own = net.eval().forward

    def fused(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return own(x) + 1

    decorated = Decorated(torch.autocast("cpu", dtype=torch.bfloat16, enabled=False)(fused))

    def around(*args: Any) -> Any:
        return decorated(*args)

    net.forward = types.MethodType(around, net)  # type: ignore[method-assign]
    twin = copied(net)
    with modules_run(net) as originals:
        found = twin(X)
    assert originals == []
    torch.testing.assert_close(found, 2 * (own(X) + 1))


def test_a_deep_copy_stays_as_it_is(net: Net) -> None:
    copied = deep_copy(net.eval())
    before = copied(X)
    with torch.no_grad():
        net.head.weight += 1
    assert torch.equal(copied(X), before)
    assert not {id(p) for p in copied.parameters()} & {id(p) for p in net.parameters()}
