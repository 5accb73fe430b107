"""Generators that samplers hold, of every kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from sifting.data.generators import OwnGenerators, generators_of, restore_generators, states_of
from sifting.data.held_generators import held_by


class Holding:
    """Shuffles by a generator of its own."""

    def __init__(self, generator: Any, draw: Callable[[Any], Any]) -> None:
        self.mine, self.draw = generator, draw

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Any:
        return iter([self.draw(self.mine) for _ in range(8)])


class Counting:
    """Shuffles by the number of the epoch, which it counts itself."""

    def __init__(self) -> None:
        self.epoch = 0

    def __len__(self) -> int:
        return 8

    def __iter__(self) -> Any:
        self.epoch += 1
        return iter(random.Random(self.epoch).sample(range(8), 8))


def numbers(generator: Any) -> int:
    return int(generator.integers(8))


HOLDERS: dict[str, Callable[[], Any]] = {
    "python": lambda: Holding(random.Random(3), lambda one: one.randrange(8)),
    "torch": lambda: Holding(
        torch.Generator().manual_seed(3), lambda one: int(torch.randint(8, (), generator=one))
    ),
    "legacy": lambda: Holding(np.random.RandomState(3), lambda one: int(one.randint(8))),
    **{
        kind.__name__: lambda kind=kind: Holding(np.random.Generator(kind(3)), numbers)
        for kind in (np.random.PCG64, np.random.MT19937, np.random.Philox, np.random.SFC64)
    },
    "count": Counting,
}


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_state_is_put_back_into_another_sampler(kind: str) -> None:
    sampler = HOLDERS[kind]()
    list(sampler)
    states = states_of(sampler)
    assert [state.dtype for state in states.values()] == [torch.uint8]
    want = [list(sampler), list(sampler)]
    other = HOLDERS[kind]()
    restore_generators(other, states)
    assert [list(other), list(other)] == want


@pytest.mark.parametrize("kind", HOLDERS)
def test_a_pass_of_its_own_leaves_it_as_it_was(kind: str) -> None:
    sampler, plain = HOLDERS[kind](), HOLDERS[kind]()
    own, passes = OwnGenerators(sampler), []
    for seed in (0, 0, 2**62 + 1):
        own.begin(seed, ahead=0)
        with own.used():
            passes.append(list(sampler))
    assert passes[0] == passes[1] != passes[2]
    assert list(sampler) == list(plain)


def test_a_damaged_state_is_refused() -> None:
    for kind in HOLDERS:
        if kind != "torch":
            sampler = HOLDERS[kind]()
            spoilt = {
                name: torch.tensor([91, 93], dtype=torch.uint8) for name in states_of(sampler)
            }
            with pytest.raises(ValueError, match="a generator of the loader's sampler"):
                restore_generators(sampler, spoilt)


def test_a_sampler_that_is_told_its_epoch_keeps_it_and_a_loader_holds_one_generator() -> None:
    class Told(Counting):
        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

    assert list(held_by(Told())) == []
    loader = DataLoader(range(8), generator=torch.Generator())  # type: ignore[arg-type]
    loader.mine = random.Random(0)  # type: ignore[attr-defined]
    assert list(generators_of(loader)) == ["0.DataLoader"]
