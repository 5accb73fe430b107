"""How a model goes from one block to the next, found on a probe and tried before it is trusted.

The hidden state after block k is what goes on from there. Blocks may chain, `h = block(h)`; a
model may add to what it has, `h = h + a * block(h)`, or mix, `h = g * block(h) + (1 - g) * h`.
What a stand-in for a later block has to hand on, so that the state is still the same at the end,
differs: the exit's output once more, zeros, or what the stand-in was given. Each is tried, and
the one that keeps the state is taken; where none does, an early exit has no meaning.

A trial is not left to chance. What block 1 puts out is noise, and parameters and buffers that are
used outside the blocks are moved (in copies), so that a fresh model's accidents, a gate at zero,
a norm that does nothing yet, are not taken for the rule. The state must reach every gap between
two blocks, and what follows the last, by way of what the stand-in before it handed on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sifting.model.gate import Act, replaced
from sifting.model.values import close, first_tensor, tensors_in, with_first_tensor
from sifting.model.watch import Moved, Slot, Watch, slots
from sifting.model.work import RunModel

HandOn = Literal["output", "copy", "zeros", "input"]


@dataclass(frozen=True)
class Wiring:
    """What keeps the hidden state as it is when a block is left out.

    >>> Wiring("zeros").stand_in((torch.ones(2), None), (torch.ones(2),), {})
    (tensor([0., 0.]), None)

    Attributes:
        hand_on: the exit's "output" (blocks chain), a "copy" of it (the model does the same after
            each block, maybe in place), "zeros" (the model adds) or the stand-in's own "input"
            (the model mixes).
        slot: the argument of a block that is the hidden state; None where it is not told, or
            where the block is given something else (the state after a norm).
    """

    hand_on: HandOn = "output"
    slot: Slot | None = None

    def kept(self, output: Any) -> Any:
        """What to keep of the exit's output for the stand-ins; the model may write over it."""
        first = first_tensor(output)
        if self.hand_on != "copy" or first is None:
            return output
        return with_first_tensor(output, first.clone())

    def stand_in(self, output: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a block that is left out returns, given the exit's output and its own arguments."""
        if self.hand_on in ("output", "copy"):
            return self.kept(output)
        first = first_tensor(output)
        assert first is not None
        if self.hand_on == "zeros":
            return with_first_tensor(output, torch.zeros_like(first))
        given = slots(args, kwargs)
        slot = self.slot if self.slot is not None else _like(given, first)
        return output if slot is None else with_first_tensor(output, given[slot])

    def state(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        """The hidden state that a block is given."""
        return None if self.slot is None else slots(args, kwargs).get(self.slot)


@dataclass
class BlockStep:
    """One call of a block.

    Attributes:
        block: which, from 0.
        inputs: the tensors that it was given.
        output: what it put out.
        version: of the tensor that it put out.
        changed: whether that was written over before the next call.
    """

    block: int
    inputs: dict[Slot, Tensor]
    output: Any = None
    version: int = 0
    changed: bool = False


def steps_of(blocks: list[tuple[nn.Module, nn.Module]], run: RunModel) -> list[BlockStep]:
    """The calls of some blocks in one forward, in order.

    Args:
        blocks: the first and the last module of each.
        run: puts some samples through the whole model.
    """
    steps: list[BlockStep] = []
    entered: list[BlockStep] = []

    def entering(block: int) -> Callable[..., None]:
        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            if steps and not entered:
                steps[-1].changed = _version(steps[-1].output) != steps[-1].version
            entered.append(BlockStep(block, slots(args, kwargs)))

        return enter

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        step = entered.pop()
        step.output, step.version = output, _version(output)
        steps.append(step)

    handles = []
    for i, (begin, end) in enumerate(blocks):
        handles.append(begin.register_forward_pre_hook(entering(i), with_kwargs=True))
        handles.append(end.register_forward_hook(leave))
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return steps


def broken_link(steps: list[BlockStep], *, itself: bool) -> int | None:
    """The first block, from 1, whose output the next one is not given; None for a chain.

    Args:
        itself: for the next one to be given that very tensor. One that is equal may have had a
            term added that is still zero, a position embedding, say.
    """
    for i, (before, after) in enumerate(pairwise(steps), start=1):
        output = first_tensor(before.output)
        if output is not None and output.is_nested:
            continue
        if output is None or before.changed:
            return i
        taken = after.inputs.values()
        if not any(v is output or (not itself and _same(v, output)) for v in taken):
            return i
    return None


def find_wiring(
    model: nn.Module, container: nn.Module, names: list[str], steps: list[BlockStep], run: RunModel
) -> Wiring | None:
    """What stand-ins have to hand on in a stack that is not a plain chain; None where nothing will.

    >>> class Residual(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
    ...     def forward(self, x):
    ...         for block in self.blocks:
    ...             x = x + 0.5 * block(x)
    ...         return x.sum()
    >>> model, x = Residual(), torch.randn(2, 4)
    >>> with torch.no_grad():
    ...     steps = steps_of([(block, block) for block in model.blocks], lambda: model(x))
    ...     find_wiring(model, model.blocks, ["0", "1", "2"], steps, lambda: model(x))
    Wiring(hand_on='zeros', slot=0)

    Args:
        model: the model, in eval mode, without gradients.
        container: what holds the blocks.
        names: the blocks in it, in the order in which they run.
        steps: their calls in a plain forward.
        run: puts some samples through the whole model.
    """
    ways: tuple[HandOn, ...] = ("copy", "zeros", "input")
    for hand_on in ways:
        trial = _Trial(model, container, names, hand_on, steps[0].output, run)
        if not (trial.holds(noise=True) and trial.holds(noise=False)):
            continue
        # of two blocks, only the first can show what becomes of a state that should stay
        if len(names) > 2 or hand_on == "copy" or trial.stays():
            return trial.wiring
    return None


class _Trial:
    """Runs a model with stand-ins that hand on one thing, and watches where the state goes."""

    def __init__(
        self,
        model: nn.Module,
        container: nn.Module,
        names: list[str],
        hand_on: HandOn,
        output: Any,
        run: RunModel,
    ) -> None:
        self.model, self.container, self.names, self.run = model, container, names, run
        self.wiring = Wiring(hand_on)
        self.output = output

    def holds(self, *, noise: bool) -> bool:
        """Whether the state after block 1 is still there at the end; notes which argument it is.

        Args:
            noise: for block 1 to put out noise, among parameters that are moved; else the model
                runs as it is.
        """
        watch = Watch(Moved(self.model) if noise else None)

        def first(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            output = _noise(self.output) if noise else block(*args, **kwargs)
            watch.output = self.wiring.kept(output)
            watch.hand_on(output)
            return output

        if not self._ran(watch, {self.names[0]: first}, self.names[1:]):
            return False
        slots_kept = watch.slots_kept()
        if noise and slots_kept:
            self.wiring = Wiring(self.wiring.hand_on, slots_kept[0])
        if self.wiring.slot is not None:
            return self.wiring.slot in slots_kept
        # the blocks may be given the state in another form, after a norm, say
        return self.wiring.hand_on == "zeros" and watch.kept(from_first=False)

    def stays(self) -> bool:
        """Whether the state before block 1 is still there after it, and at the end."""
        watch = Watch(Moved(self.model))
        watch.output = self.output
        if not self._ran(watch, {}, self.names):
            return False
        if self.wiring.hand_on == "zeros":
            return watch.kept(from_first=True)
        return any(close(v, b) for v in watch.given[0].values() for b in watch.start)

    def _ran(self, watch: Watch, acts: dict[str, Act], skipped: list[str]) -> bool:
        def stand_in(block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            watch.enter(slots(args, kwargs))
            output = self.wiring.stand_in(watch.output, args, kwargs)
            watch.hand_on(output)
            return output

        try:
            with replaced(self.container, {**acts, **dict.fromkeys(skipped, stand_in)}), watch:
                result = self.run()
        except Exception:
            return False  # a model may raise anything on values that it did not make itself
        watch.note(list(tensors_in(result)))
        return watch.gap == len(self.names)


def _version(output: Any) -> int:
    """How often the first tensor of an output was written over; not known in inference mode."""
    first = first_tensor(output)
    return 0 if first is None or first.is_inference() else first._version


def _noise(output: Any) -> Any:
    """An output of the same make with noise in place of its first tensor."""
    first = first_tensor(output)
    assert first is not None
    values = torch.randn(first.shape, generator=torch.Generator().manual_seed(1))
    return with_first_tensor(output, values.to(first.device, first.dtype))


def _like(given: dict[Slot, Tensor], output: Tensor) -> Slot | None:
    """The first argument of the same shape and kind as an output."""
    for slot, value in given.items():
        if value.shape == output.shape and value.is_floating_point():
            return slot
    return None


def _same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
