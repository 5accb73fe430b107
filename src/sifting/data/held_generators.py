"""Generators that samplers hold: torch's, NumPy's, Python's, and counts of their epochs, all alike."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor

from sifting.plain import damaged


class HeldGenerator(Protocol):
    """What can be kept, put back and begun from a seed; `torch.Generator` is one."""

    def get_state(self) -> Tensor: ...

    def set_state(self, state: Tensor, /) -> Any: ...

    def manual_seed(self, seed: int, /) -> Any: ...


def held_by(node: Any) -> Iterator[tuple[str, HeldGenerator, Any]]:
    """The generators of a loader or sampler: the name of each, its handle, and what it is.

    Of a loader only `generator`; of a sampler every attribute that is one, whatever its name. A sampler
    that counts its epochs by itself, and is told none by `set_epoch`, draws from that count.

    >>> sampler = type("Sampler", (), {})()
    >>> sampler.rng, sampler.epoch = random.Random(0), 3
    >>> [name for name, _, _ in held_by(sampler)]
    ['rng', 'epoch']
    """
    generator = getattr(node, "generator", None)
    if isinstance(generator, torch.Generator):
        yield "generator", generator, generator
    if hasattr(node, "dataset") and hasattr(node, "batch_sampler"):
        return
    numpy: Any = sys.modules.get("numpy")
    for name, value in list(getattr(node, "__dict__", {}).items()):
        if isinstance(value, torch.Generator):
            yield name, value, value
        elif isinstance(value, random.Random):
            yield name, _Python(value), value
        elif numpy is not None and isinstance(value, numpy.random.Generator):
            yield name, _NumPy(value.bit_generator), value
        elif numpy is not None and isinstance(value, numpy.random.RandomState):
            yield name, _LegacyNumPy(value), value
        elif name == "epoch" and type(value) is int and not hasattr(node, "set_epoch"):
            yield name, _Count(node), node


class _Python:
    def __init__(self, generator: random.Random) -> None:
        self.generator = generator

    def get_state(self) -> Tensor:
        return _packed(self.generator.getstate())

    def set_state(self, state: Tensor) -> None:
        with _Damage():
            version, words, gauss = _unpacked(state)
            self.generator.setstate((version, tuple(words), gauss))

    def manual_seed(self, seed: int) -> None:
        self.generator.seed(seed)


class _NumPy:
    def __init__(self, bits: Any) -> None:
        self.bits = bits

    def get_state(self) -> Tensor:
        return _packed(self.bits.state)

    def set_state(self, state: Tensor) -> None:
        with _Damage():
            self.bits.state = _unpacked(state)

    def manual_seed(self, seed: int) -> None:
        self.bits.state = type(self.bits)(seed).state


class _LegacyNumPy:
    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def get_state(self) -> Tensor:
        return _packed(self.generator.get_state(legacy=False))

    def set_state(self, state: Tensor) -> None:
        with _Damage():
            self.generator.set_state(_unpacked(state))

    def manual_seed(self, seed: int) -> None:
        self.generator.seed(seed % 2**32)


class _Count:
    def __init__(self, node: Any) -> None:
        self.node = node

    def get_state(self) -> Tensor:
        return _packed(self.node.epoch)

    def set_state(self, state: Tensor) -> None:
        with _Damage():
            self.node.epoch = int(_unpacked(state))

    def manual_seed(self, seed: int) -> None:
        self.node.epoch = seed % 2**31


class _Damage:
    """What cannot be made of a state is said as of any state that is damaged."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if isinstance(error, ValueError | TypeError | KeyError | IndexError | OverflowError):
            raise damaged("a generator of the loader's sampler has no such state") from error


def _packed(state: Any) -> Tensor:
    """A state of numbers, lists and arrays as bytes, as torch's own are."""
    text = json.dumps(
        state, default=lambda array: {"array": array.tolist(), "of": str(array.dtype)}
    )
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)


def _unpacked(state: Tensor) -> Any:
    return json.loads(bytes(state.cpu().tolist()), object_hook=_array)


def _array(found: dict[str, Any]) -> Any:
    if found.keys() != {"array", "of"}:
        return found
    return sys.modules["numpy"].array(found["array"], dtype=found["of"])
