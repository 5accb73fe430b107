"""The stack of blocks inside a model, and running only its first k blocks.

While a model is truncated, the blocks after the k-th are replaced in their container by stand-ins
that keep the hidden state as it is after the k-th; afterwards the container holds what it held
before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from sifting.model.gate import Act, replaced
from sifting.model.values import first_tensor
from sifting.model.wiring import Wiring, broken_link, find_wiring, steps_of


class StackError(ValueError):
    """No stack, more than one, or none that an exit has a meaning in: the message says which."""


@dataclass(eq=False)
class Stack:
    """The blocks of a model, in the order in which they run.

    Attributes:
        path: dotted path of the container.
        container: the ModuleList or Sequential that holds the blocks.
        blocks: the names, within the container, of the modules that make up each block.
        model: the model that it is in.
        repeats: how often each block is used on average, where blocks are shared between
            layers (ALBERT); 1 elsewhere.
        wiring: how the model goes from block to block, once `check_chain` has found it; blocks
            are taken to chain until then.
        cut: how many blocks run, while it is truncated.
    """

    path: str
    container: nn.Module
    blocks: tuple[tuple[str, ...], ...]
    model: nn.Module
    repeats: int = 1
    wiring: Wiring = field(default_factory=Wiring)
    cut: int | None = None

    def __len__(self) -> int:
        return len(self.blocks) * self.repeats

    def __str__(self) -> str:
        block = " + ".join(type(self.module(name)).__name__ for name in self.blocks[0])
        return f"{self.path!r} ({len(self)} × {block})"

    def check_exit(self, k: int) -> None:
        """Raise unless there is a k-th block, counting from 1."""
        if not 1 <= k <= len(self):
            raise ValueError(
                f"exit={k} is out of range: the stack {self.path!r} has {len(self)} blocks, "
                f"so choose 1 to {len(self)}, or 'last'"
            )

    def path_of(self, k: int) -> str:
        """Dotted path of the last module of the k-th block; of the last block, where they repeat."""
        name = self.blocks[min(k, len(self.blocks)) - 1][-1]
        return f"{self.path}.{name}" if self.path else name  # the model itself may be the container

    def module(self, name: str) -> nn.Module:
        """A member of the container, by name."""
        child = self.container._modules[name]
        assert child is not None
        return child

    def check_chain(self, run: Callable[[], Any]) -> None:
        """Find out how the model goes from block to block; raise where an exit has no meaning.

        Args:
            run: puts some samples through the whole model, in eval mode, without gradients.
        """
        ends = [(self.module(names[0]), self.module(names[-1])) for names in self.blocks]
        steps = steps_of(ends, run)
        if len(steps) != len(self):
            raise StackError(
                f"the stack {self} ran {len(steps)} blocks in one forward: it is not run once, in order, so "
                "it cannot have an exit. Name another with stack='…', or use TunedExit('path') at "
                "another module, or exit='last'"
            )
        order = [step.block for step in steps]
        if self.repeats == 1 and order != sorted(order):
            raise StackError(
                f"the stack {self} runs its blocks in the order {', '.join(str(i + 1) for i in order)}, so "
                "its first ones are not early. Use TunedExit('path.to.module') or exit='last'"
            )
        outputs = [first_tensor(step.output) for step in steps]
        for i, (before, after) in enumerate(pairwise(outputs), start=1):
            if before is not None and before.is_nested:
                continue
            if before is None or after is None or before.shape != after.shape:
                raise StackError(
                    f"the stack {self}: blocks {i} and {i + 1} output different shapes, so the model's head "
                    "does not fit the earlier one. Use TunedExit('path') or AdditiveExit(model, 'path')"
                )
        single = self.repeats == 1 and all(len(block) == 1 for block in self.blocks)
        broken = broken_link(steps, itself=single)
        if broken is None:
            self.wiring = Wiring()
            return
        names = [names[0] for names in self.blocks]
        found = find_wiring(self.model, self.container, names, steps, run) if single else None
        if found is None:
            raise StackError(
                f"the stack {self}: block {broken + 1} does not take the output of block {broken}, nor a "
                "state that it was added to, so nothing carries an early block's result to the model's "
                "head. Use TunedExit('path.to.module'), which has a head of its own, or exit='last'; or put "
                "into the blocks what the model does between them"
            )
        self.wiring = found

    def beside(self, twin: Callable[[nn.Module], nn.Module]) -> Stack:
        """The same blocks in a copy of the model."""
        return replace(self, container=twin(self.container), model=twin(self.model))

    @contextmanager
    def truncated(self, k: int) -> Iterator[Exitway]:
        """While open, the model runs only its first k blocks, then whatever follows the stack.

        Yields the record of what the k-th block put out.
        """
        self.check_exit(k)
        way = Exitway(k, self.wiring)
        handle = None
        acts: dict[str, Act]
        if self.repeats > 1:
            acts = dict.fromkeys((names[-1] for names in self.blocks), way.counted)
        else:
            handle = self.module(self.blocks[k - 1][-1]).register_forward_hook(way.record)
            acts = dict.fromkeys((name for names in self.blocks[k:] for name in names), way.skip)
        self.cut = k
        try:
            with replaced(self.container, acts):
                yield way
            if way.output is not None and way.limit < len(self) and not way.skipped:
                raise StackError(
                    f"the blocks after {k} of {self.path!r} were not called through their container, so "
                    "they cannot be left out: the model keeps them elsewhere too"
                )
        finally:
            self.cut = None
            if handle is not None:
                handle.remove()


class Exitway:
    """What went through the exit during one truncated forward."""

    def __init__(self, limit: int, wiring: Wiring) -> None:
        self.limit = limit
        self.wiring = wiring
        self.skipped = False
        self.calls = 0
        self.output: Any = None
        self.state: Tensor | None = None

    def record(self, module: nn.Module, args: Any, output: Any) -> None:
        """Forward hook of the k-th block."""
        self.output = self.wiring.kept(output)

    def skip(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a stand-in for a block after the k-th returns."""
        if not self.skipped and self.wiring.hand_on in ("zeros", "input"):
            self.state = self.wiring.state(args, kwargs)
        self.skipped = True
        if self.output is None:
            return None  # the exit did not run: `hidden` says so
        return self.wiring.stand_in(self.output, args, kwargs)

    def counted(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a stand-in for a block that serves several layers returns."""
        if self.calls >= self.limit:
            return self.skip(block, args, kwargs)
        self.calls += 1
        output = block(*args, **kwargs)
        self.output = self.wiring.kept(output)
        return output

    @property
    def hidden(self) -> Tensor:
        """The hidden state after the k-th block.

        What it put out (the first tensor, where it returns several), or what the next one is given
        where that is more: the sum of all that the blocks have added. After the last block, only
        what it put out is known.
        """
        found = self.state if self.state is not None else first_tensor(self.output)
        if found is None:
            raise ValueError(
                "the block at the exit did not run, or returned no tensor: the model does not run "
                "its stack in order. Name the right one with stack=, or pass forward="
            )
        return found
