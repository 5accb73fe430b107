"""What a model's last layer is given in the user's own forward."""

from __future__ import annotations

import copy

import torch
from torch import nn

from sifting.autopilot.features import LastLayer
from tests.helpers.models import Net, candidates
from tests.helpers.plans import plan_of


def test_the_next_forward_is_noted_and_no_other(net: Net) -> None:
    x, y = candidates(1)[0]
    plan = plan_of(net, (x, y))
    given: list[torch.Tensor] = []
    net.head.register_forward_pre_hook(lambda m, args: given.append(args[0].detach()))
    last = LastLayer(net)
    last.listen(plan)
    net(x)
    found = last.take()
    assert found is not None
    assert torch.equal(found, given[-1])
    assert not found.requires_grad
    net(x)
    assert last.take() is None
    assert not net.head._forward_hooks


def test_a_forward_without_gradients_is_not_the_users_step(net: Net) -> None:
    x, y = candidates(1)[0]
    last = LastLayer(net)
    last.listen(plan_of(net, (x, y)))
    with torch.no_grad():
        net(x)
    assert last.take() is None


def test_a_copy_of_the_model_is_mute(net: Net) -> None:
    x, y = candidates(1)[0]
    last = LastLayer(net)
    last.listen(plan_of(net, (x, y)))
    twin = copy.deepcopy(net)
    twin(x)
    assert last.take() is None


def test_where_no_layer_makes_the_logits_nothing_is_listened_to(net: Net) -> None:
    x, y = candidates(1)[0]
    plan = plan_of(net, (x, y))
    assert LastLayer(nn.Sequential(nn.Linear(8, 4))).find(5) is None
    compiled = LastLayer(net, torch.compile(net, backend="eager"))
    compiled.listen(plan)
    assert not net.head._forward_hooks, "a hook would have it compiled again"
    LastLayer(net).listen(None)
    assert not net.head._forward_hooks
