"""A running average of a model's weights."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from sifting.autopilot.average import AveragedWeights
from tests.helpers.models import Net


def test_it_follows_the_weights_and_the_statistics_of_normalization(net: Net) -> None:
    average = AveragedWeights(net, horizon=4)
    weight = net.head.weight.detach().clone()
    statistics = net.norm.running_mean.clone()
    with torch.no_grad():
        net.head.weight += 1
        net.norm.running_mean += 1
    average.update()
    average.update(steps=2)
    with average.in_place():
        # a quarter of the way, then half of what is left
        torch.testing.assert_close(net.head.weight, weight + 0.625)
        torch.testing.assert_close(net.norm.running_mean, statistics + 0.625)
    assert torch.equal(net.head.weight, weight + 1)


def test_what_is_frozen_or_a_table_has_no_average(net: Net) -> None:
    net.embed.requires_grad_(False)
    net.register_buffer("mask", torch.tensor([float("-inf")]))
    names = set(AveragedWeights(net, 4).state_dict())
    assert not any(name.startswith("embed") for name in names)
    assert "mask" not in names
    assert {"head.weight", "norm.running_var"} <= names


def test_what_is_thawed_later_is_taken_up(net: Net) -> None:
    net.embed.requires_grad_(False)
    average = AveragedWeights(net, 4)
    net.embed.requires_grad_(True)
    average.update()
    assert "embed.weight" in average.state_dict()


def test_the_models_own_weights_come_back_also_after_an_error(net: Net) -> None:
    average = AveragedWeights(net, 4)
    with torch.no_grad():
        net.head.weight += 1
    before = net.head.weight.detach().clone()
    with pytest.raises(KeyError), average.in_place():
        raise KeyError
    assert torch.equal(net.head.weight, before)


def test_a_graph_that_the_user_still_holds_stays_valid(net: Net) -> None:
    average = AveragedWeights(net, 4)
    loss = net(torch.randn(6, 8)).sum()
    average.update()
    with average.in_place():
        pass
    loss.backward()
    assert net.head.weight.grad is not None


def test_its_state_comes_back_and_that_of_another_model_is_refused(net: Net) -> None:
    average, again = AveragedWeights(net, 4), AveragedWeights(Net(), 4)
    again.load_state_dict(average.state_dict())
    state = again.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in average.state_dict().items())
    with pytest.raises(ValueError, match=r"do not fit '.*' of this model"):
        AveragedWeights(nn.Linear(3, 3), 4).load_state_dict(state)
