"""Watching a forward from inside: what is made with what a block handed on."""

from __future__ import annotations

import torch
from torch import nn

from sifting.model.watch import Moved, Watch, slots


def test_slots_are_the_tensors_among_arguments() -> None:
    x, mask = torch.ones(2), torch.zeros(2)
    assert slots((x, None, 3), {"mask": mask, "scale": 2.0}) == {0: x, "mask": mask}


def test_what_is_made_with_what_was_handed_on_is_followed() -> None:
    handed, other = torch.ones(2), torch.full((2,), 5.0)
    with Watch(None) as watch:
        watch.hand_on((handed, None))
        made = handed * 2
        apart = other + 1
        both = made + other
        watch.enter({0: both, "mask": apart})
    assert watch.gap == 1
    assert list(watch.given[0]) == [0], "the mask has nothing of it"
    assert any(torch.equal(value, made) for value in watch.met[0])
    assert any(torch.equal(value, other) for value in watch.there[0])


def test_a_state_that_every_block_is_given_as_it_is_is_kept() -> None:
    state = torch.tensor([1.0, 2.0])
    with Watch(None) as watch:
        for _ in range(2):
            out = torch.zeros(2)
            watch.hand_on(out)
            into = state + out
            watch.enter({0: into})
        last = torch.zeros(2)
        watch.hand_on(last)
        watch.note([state + last])
    assert watch.slots_kept() == [0]


def test_a_chain_that_hands_on_its_output_keeps_nothing() -> None:
    with Watch(None) as watch:
        for value in (1.0, 2.0, 3.0):
            out = torch.full((2,), value)
            watch.hand_on(out)
            watch.enter({0: out * 2})
    assert watch.slots_kept() == []


def test_sizes_and_numbers_are_no_use_of_a_tensor() -> None:
    handed = torch.ones(2, 3)
    with Watch(None) as watch:
        watch.hand_on(handed)
        handed.size()
        handed.dim()
    assert watch.met == [[]]


def test_what_a_model_holds_is_moved_a_little_and_stays_positive() -> None:
    model = nn.BatchNorm1d(4)
    moved = Moved(model)
    weight = moved.swapped(model.weight)
    assert not torch.equal(weight, model.weight)
    assert bool((weight > 0).all())
    assert moved.swapped(model.weight) is weight, "once, and then the same"
    x = torch.randn(3, 4)
    assert moved.swapped(x) is x
    args = moved.swapped((x, [model.bias], {"n": model.num_batches_tracked}))
    assert args[0] is x
    assert args[1][0] is not model.bias
    assert args[2]["n"] is model.num_batches_tracked, "a count is left alone"
