"""Reading a state of plain values back: each is checked, and what is wrong is named by its place.

A state is what a file says, and a file may say anything. Whoever loads one reads all of it first and
then changes what it has, so that a state that is refused changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, TypeVar

import torch
from torch import Tensor

MOST = 2**53  # of a count: as many steps as no run makes, and the last whole number a double tells
T = TypeVar("T")


class Plain:
    """A mapping that is read name by name.

    >>> Plain({"steps": -3}, "the meter's counts").whole("steps")
    Traceback (most recent call last):
    ValueError: the state is damaged: 'steps' of the meter's counts is -3, and must be a whole number from 0

    Args:
        content: what should be a mapping.
        called: what it is called in a message.
    """

    def __init__(self, content: Any, called: str) -> None:
        self.called = called
        if not isinstance(content, Mapping):
            raise damaged(f"{called} is {_shown(content)}, and must be a mapping")
        self.content = content

    def __contains__(self, name: str) -> bool:
        return name in self.content

    def get(self, name: str) -> Any:
        """Whatever stands under a name, which must be there."""
        if name not in self.content:
            raise damaged(f"{self.called} has no {name!r}")
        return self.content[name]

    def inside(self, name: str) -> Plain:
        """A mapping under a name."""
        return Plain(self.get(name), f"{name!r} of {self.called}")

    def whole(self, name: str, least: int = 0, most: int = MOST) -> int:
        """A whole number."""
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            limits = f"from {least}" if most == MOST else f"from {least} to {most}"
            self.refuse(name, f"a whole number {limits}")
        return int(value)

    def flag(self, name: str) -> bool:
        """Yes or no."""
        value = self.get(name)
        if not isinstance(value, bool):
            self.refuse(name, "True or False")
        return bool(value)

    def number(self, name: str) -> float:
        """A finite number."""
        return self.numbers(name, [self.get(name)])[0]

    def numbers(
        self, name: str, values: Any = None, *, length: int | None = None, nan: bool = False
    ) -> list[float]:
        """A list of finite numbers.

        Args:
            name: under which they stand.
            values: inside of what stands there; by default all of it.
            length: how many there must be.
            nan: whether a value may be missing, as not a number.
        """
        values = self.get(name) if values is None else values
        wanted = f"a list of {'numbers' if length is None else f'{length} numbers'}"
        if not isinstance(values, list | tuple):
            self.refuse(name, wanted)
        sound = all(_is_number(value, nan=nan) for value in values)
        if not sound or (length is not None and len(values) != length):
            self.refuse(name, wanted)
        return [float(value) for value in values]

    def items(self, name: str) -> list[Any]:
        """A list of anything."""
        value = self.get(name)
        if not isinstance(value, list | tuple):
            self.refuse(name, "a list")
        return list(value)

    def tensor(
        self, name: str, *, shape: Sequence[int] | None = None, dims: int | None = None
    ) -> Tensor:
        """A tensor, of a shape or a number of dimensions."""
        value = self.get(name)
        if not isinstance(value, Tensor):
            self.refuse(name, "a tensor")
        if shape is not None and tuple(value.shape) != tuple(shape):
            self.refuse(name, f"a tensor of shape {tuple(shape)}")
        if dims is not None and value.dim() != dims:
            self.refuse(name, f"a tensor of {dims} dimensions")
        return value

    def made(self, name: str, make: Callable[[Any], T]) -> T:
        """What a function makes of the value; where it cannot, the name is said."""
        value = self.get(name)
        try:
            return make(value)
        except Exception as error:
            if isinstance(error, ValueError) and str(error).startswith(DAMAGED):
                raise
            raise damaged(f"{name!r} of {self.called} cannot be used: {error}") from error

    def refuse(self, name: str, wanted: str) -> NoReturn:
        """Raise for what stands under a name."""
        shown = _shown(self.content[name])
        raise damaged(f"{name!r} of {self.called} is {shown}, and must be {wanted}")

    def __iter__(self) -> Iterator[str]:
        for name in self.content:
            if not isinstance(name, str):
                raise damaged(f"{self.called} has the name {name!r}, and must have words")
            yield name


DAMAGED = "the state is damaged: "


def damaged(what: str) -> ValueError:
    """The error of a state that cannot be loaded."""
    return ValueError(DAMAGED + what)


def generator_state(value: Any) -> Tensor:
    """State of a random generator on the CPU, tried on one of its own."""
    if not isinstance(value, Tensor):
        raise TypeError(f"it is {_shown(value)}, and must be a tensor")
    state: Tensor = value.detach().cpu()
    torch.Generator().set_state(state)
    return state


def _is_number(value: Any, *, nan: bool) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    try:
        return math.isfinite(value) or (nan and math.isnan(value))
    except OverflowError:  # a whole number that no float holds
        return False


def _shown(value: Any) -> str:
    """A value in a message, cut where it is long."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping | list | tuple):
        return f"a {type(value).__name__} of {len(value)}"
    try:
        text = repr(value)
    except ValueError:  # a whole number of too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "…"
