"""The random generators that a loader and its samplers draw from: found, kept, and set aside."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sifting.data.held_generators import HeldGenerator, held_by
from sifting.plain import Plain
from sifting.rng import RandomState


@dataclass(frozen=True)
class Streams:
    """The global random generators, and those of a loader and its samplers, at one moment."""

    state: RandomState
    generators: Mapping[str, Tensor]

    @classmethod
    def now(cls, loader: Any) -> Streams:
        """As they are."""
        return cls(RandomState.now(), states_of(loader))

    def restore(self, loader: Any) -> None:
        """Put them back."""
        self.state.restore()
        restore_generators(loader, self.generators)

    def to_plain(self) -> dict[str, Any]:
        """As tensors and numbers, to be saved."""
        return {"state": self.state.to_plain(), "generators": dict(self.generators)}

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> Streams:
        """Back from what `to_plain` gave."""
        found = Plain(plain, "the streams of a loader")
        state = found.made("state", RandomState.from_plain)
        return cls(state, checked_states(found, "generators"))


class OwnGenerators:
    """Generators of its own in place of those that a sampler draws from, while it draws."""

    def __init__(self, sampler: Any) -> None:
        # an order is made from the number of the epoch that the stream began in: some samplers
        # count on by themselves once a pass is over
        self._told = [
            (node, node.epoch)
            for node in chain_of(sampler)
            if isinstance(getattr(node, "epoch", None), int) and hasattr(node, "set_epoch")
        ]
        self._generators = generators_of(sampler)
        self._own: tuple[RandomState, dict[str, Tensor]] | None = None
        self._ahead = 0

    def begin(self, seed: int, ahead: int) -> None:
        """Start a pass from a seed."""
        with self._put_back():
            torch.default_generator.manual_seed(seed)  # `torch.manual_seed` would seed GPUs too
            random.seed(seed)
            if "numpy" in sys.modules:
                sys.modules["numpy"].random.seed(seed % 2**32)
            for generator in self._generators.values():
                generator.manual_seed(seed)
            self._keep()
        self._ahead = ahead

    @contextmanager
    def used(self) -> Iterator[None]:
        """While open, the sampler draws from its own; afterwards all are as they were."""
        assert self._own is not None
        with self._put_back(), self._other_epoch():
            state, generators = self._own
            state.restore()
            for name, generator in self._generators.items():
                generator.set_state(generators[name])
            yield
            self._keep()

    def _keep(self) -> None:
        states = {name: generator.get_state() for name, generator in self._generators.items()}
        self._own = RandomState.now(), states

    @contextmanager
    def _put_back(self) -> Iterator[None]:
        state = RandomState.now()
        states = {name: generator.get_state() for name, generator in self._generators.items()}
        try:
            yield
        finally:
            state.restore()
            for name, generator in self._generators.items():
                generator.set_state(states[name])

    @contextmanager
    def _other_epoch(self) -> Iterator[None]:
        """Samplers that make their order from the epoch's number make another one."""
        now = [node.epoch for node, _ in self._told]
        for node, epoch in self._told:
            node.set_epoch(epoch + self._ahead)
        try:
            yield
        finally:
            for (node, _), epoch in zip(self._told, now, strict=True):
                node.set_epoch(epoch)


def chain_of(sampler: Any) -> Iterator[Any]:
    """A loader or sampler, and the samplers inside it."""
    open_nodes, seen = [(sampler, 0)], set()
    while open_nodes:
        node, depth = open_nodes.pop(0)
        if id(node) in seen or depth > 4:
            continue
        seen.add(id(node))
        yield node
        for name in ("batch_sampler", "sampler"):
            child = getattr(node, name, None)
            if child is not None:
                open_nodes.append((child, depth + 1))


def generators_of(loader: Any) -> dict[str, HeldGenerator]:
    """The generators that a loader, its samplers and theirs draw from, by where they are."""
    found: dict[str, HeldGenerator] = {}
    seen: set[int] = set()
    for place, node in enumerate(chain_of(loader)):
        for name, generator, what in held_by(node):
            if id(what) not in seen:
                seen.add(id(what))
                suffix = "" if name == "generator" else f".{name}"
                found[f"{place}.{type(node).__name__}{suffix}"] = generator
    return found


def states_of(loader: Any) -> dict[str, Tensor]:
    """Of the generators that a loader and its samplers draw from, by where they are."""
    return {name: found.get_state() for name, found in generators_of(loader).items()}


def restore_generators(loader: Any, states: Mapping[str, Tensor]) -> None:
    """Put the generators of a loader back to states that were taken of them."""
    for name, generator in generators_of(loader).items():
        if name in states:
            generator.set_state(states[name].cpu())


def checked_states(found: Plain, name: str) -> dict[str, Tensor]:
    """States of a loader's generators, by where they are; some may be a GPU's."""
    states = found.inside(name)
    for place in states:
        if states.tensor(place, dims=1).dtype != torch.uint8:
            states.refuse(place, "the bytes of a generator's state")
    return dict(states.content)
