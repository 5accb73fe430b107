"""Watching a forward from inside: which tensors are made with what a block handed on."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sifting.model.values import close, first_tensor, tensors_in

Slot = int | str  # a block's argument, by its place or its name


def slots(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[Slot, Tensor]:
    """The tensors among a module's arguments."""
    members: list[tuple[Slot, Any]] = [*enumerate(args), *kwargs.items()]
    return {slot: value for slot, value in members if isinstance(value, Tensor)}


class Watch(TorchFunctionMode):
    """Follows what comes of the tensor that was handed on last, gap by gap.

    A gap is what a model does between two blocks, and after the last. Met there is what an
    operation, the next block or the caller was given and was made with the tensor handed on.
    """

    def __init__(self, moved: Moved | None) -> None:
        super().__init__()
        self.moved = moved
        self.output: Any = None  # of the exit
        self.gap = 0
        self.met: list[list[Tensor]] = []  # by gap
        self.given: list[dict[Slot, Tensor]] = []  # to each block after the first
        self.start: list[Tensor] = []  # what the first block was given
        self.there: list[list[Tensor]] = []  # by gap, what was there before it and is used in it
        self.made: dict[int, Tensor] = {}  # with what was handed on, in this gap; kept alive

    def hand_on(self, output: Any) -> None:
        """Begin a gap with what a block puts out."""
        first = first_tensor(output)
        assert first is not None
        self.gap += 1
        self.met.append([])
        self.there.append([])
        self.made = {id(first): first}

    def enter(self, inputs: dict[Slot, Tensor]) -> None:
        """End a gap with what the next block is given."""
        if self.gap == 0:
            self.start = [v.clone() for v in inputs.values() if v.is_floating_point()]
            return
        self.given.append({s: v.clone() for s, v in inputs.items() if id(v) in self.made})
        self.note(list(inputs.values()))

    def note(self, values: list[Tensor]) -> None:
        """Take down which of these were made with what was handed on, and which were not."""
        own = self.moved.own if self.moved is not None else {}
        if self.gap:
            self.met[-1] += [v.clone() for v in values if id(v) in self.made]
            old = [v for v in values if id(v) not in self.made and id(v) not in own]
            self.there[-1] += [v.clone() for v in old]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name == "__get__":
            return func(*args, **kwargs)
        if not self.gap:  # what is added between the blocks may be made before them
            return func(*self._swapped(args), **self._swapped(kwargs))
        taken = [v for v in tensors_in((args, kwargs)) if v.is_floating_point()]
        met, there = len(self.met[-1]), len(self.there[-1])
        self.note(taken)  # before the call, which may write over them
        hit = any(id(v) in self.made for v in taken)
        result = func(*self._swapped(args), **self._swapped(kwargs))
        made = taken[:1] if name == "__setitem__" else list(tensors_in(result))
        if not made:  # a size, a number: nothing comes of it
            del self.met[-1][met:], self.there[-1][there:]
        if hit:
            self.made.update((id(v), v) for v in made)
        return result

    def _swapped(self, value: Any) -> Any:
        return value if self.moved is None else self.moved.swapped(value)

    def slots_kept(self) -> list[Slot]:
        """Arguments that carry one state into every block, which then reaches what follows."""
        return [
            slot
            for slot, state in (self.given[0] if self.given else {}).items()
            if all(slot in given and close(given[slot], state) for given in self.given)
            and any(close(value, state) for value in self.met[-1])
        ]

    def kept(self, *, from_first: bool) -> bool:
        """Whether some value is met in every gap, and came through each stand-in as it was.

        Args:
            from_first: whether a stand-in took the first block's place too; else that block made it.
        """
        through = [
            [v for v in met if any(close(v, old) for old in there)]
            for met, there in zip(self.met, self.there, strict=True)
        ]
        states = through[0] if from_first else self.met[0]
        return any(
            bool((state != 0).any())
            and all(any(close(value, state) for value in values) for values in through[1:])
            for state in states
        )


class Moved:
    """Copies of what a model holds, a little away from where it is; what is positive stays so."""

    def __init__(self, model: nn.Module) -> None:
        self.own = {id(t): t for t in (*model.parameters(), *model.buffers())}
        self.copies: dict[int, Tensor] = {}
        self.generator = torch.Generator().manual_seed(0)

    def swapped(self, value: Any) -> Any:
        """Arguments of an operation, with the copies in place of what the model holds."""
        if isinstance(value, Tensor):
            return self._copy(value) if id(value) in self.own else value
        if type(value) in (tuple, list):
            return type(value)(self.swapped(member) for member in value)
        if type(value) is dict:
            return {key: self.swapped(member) for key, member in value.items()}
        return value

    def _copy(self, tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return tensor
        if id(tensor) not in self.copies:
            u = torch.rand(tensor.shape, generator=self.generator).to(tensor.device, tensor.dtype)
            self.copies[id(tensor)] = tensor.detach() * (1 + u) + u / 4
        return self.copies[id(tensor)]
