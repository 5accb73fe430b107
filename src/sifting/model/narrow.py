"""The exit's block only where predictions are wanted: its layers that work position by position.

In the last block that runs, keys and values are needed of every position; queries, what follows the
attention and the MLP only of those that the head will look at. Which layers these are is found on
some samples: everything else that a layer puts out is replaced by NaN, and none may arrive.

Shapes: B samples, T positions, N positions that are wanted, X and Y features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor, nn

from sifting.model.gate import with_forward
from sifting.model.parts import Part, Rows
from sifting.model.plan import Plan
from sifting.model.stack import Stack
from sifting.model.values import close

MOST = 0.75  # of all positions: where more are wanted, layers run whole

# Positions beside the labelled ones that a model may predict from: none, the first, the last, both.
OTHERS: tuple[tuple[int, ...], ...] = ((), (0,), (-1,), (0, -1))


class _Unfit(Exception):
    """A layer is given, or puts out, something else than a vector for each position."""


@dataclass(frozen=True, eq=False)
class Narrow:
    """Layers of a block that run on some positions only.

    Attributes:
        layers: by their paths within the block's container.
        others: positions that are wanted beside those that are scored.
    """

    layers: dict[str, nn.Module]
    others: tuple[int, ...] = ()

    @contextmanager
    def opened(self, wanted_BT: Tensor, *, fill: float = 0.0) -> Iterator[list[str]]:
        """While open, the layers run where something is wanted, and give `fill` elsewhere.

        Yields the paths of those that have run.

        Args:
            wanted_BT: positions that are scored.
            fill: what stands at the others.
        """
        wanted_BT = wanted_BT.clone()
        strict = math.isnan(fill)
        for place in self.others:
            wanted_BT[:, place] = True
        index_N = wanted_BT.flatten().nonzero().squeeze(1)
        if len(index_N) > MOST * wanted_BT.numel() and not strict:
            yield []  # taking them out would cost more than it saves
            return
        shape = tuple(wanted_BT.shape)
        ran: list[str] = []
        with ExitStack() as open_layers:
            for path, layer in self.layers.items():
                forward = _restricted(
                    layer.forward, shape, index_N, fill, partial(ran.append, path), strict=strict
                )
                open_layers.enter_context(with_forward(layer, forward))
            yield ran


def wanted(plan: Plan) -> Tensor | None:
    """The positions (B, T) whose hidden states the heads will look at; None where it is not known."""
    found: Tensor | None = None
    for part, chosen_BT in plan.chosen.items():
        if part.logits not in plan.heads:
            return None
        whole_BT = nn.functional.pad(chosen_BT, (0, part.shift))
        if found is not None and found.shape != whole_BT.shape:
            return None
        found = whole_BT if found is None else found | whole_BT
    return found


def narrowed(narrow: Narrow | None, plan: Plan) -> AbstractContextManager[Any]:
    """The layers restricted to what a plan has chosen, where that is little enough to pay."""
    wanted_BT = None if narrow is None else wanted(plan)
    if narrow is None or wanted_BT is None:
        return nullcontext()
    return narrow.opened(wanted_BT)


def find_narrow(stack: Stack, k: int, plan: Plan, model: nn.Module, probe: Any) -> Narrow | None:
    """Layers of the k-th block that need not run everywhere; None where there are none.

    Args:
        stack: with the block.
        k: which, from 1.
        plan: how the model is scored.
        model: in eval mode, without gradients.
        probe: some samples.
    """
    if stack.repeats > 1:
        return None
    tries = [_Try.of(stack, k, half, model, probe) for half in _halves(plan, probe)]
    if not tries or any(one is None for one in tries):
        return None
    for others in OTHERS:
        layers = _search(stack, k, others, [one for one in tries if one is not None])
        if layers:
            return Narrow(layers, others)
        if all(part.logits in plan.heads for part in plan.parts):
            break  # nothing is predicted from anywhere else
    return None


def _halves(plan: Plan, probe: Any) -> list[Plan]:
    """The plan for every other labelled position, and for the rest of them.

    A position that something else is predicted from as well is missing in one of the two.
    """
    halves: tuple[dict[Part, Tensor], ...] = ({}, {})
    for part in plan.parts:
        labels = plan.labels_for(part, probe)
        if part.logits not in plan.heads or labels is None:
            continue
        mask_BT = part.labelled(labels)
        odd_BT = mask_BT.flatten().cumsum(0).view_as(mask_BT) % 2 == 1
        for half, these_BT in zip(halves, (odd_BT, ~odd_BT), strict=True):
            half[part] = mask_BT & these_BT
    return [replace(plan, chosen=half) for half in halves]


@dataclass(frozen=True, eq=False)
class _Try:
    """A forward up to the exit on some samples, and what comes of it where it is wanted."""

    wanted_BT: Tensor
    collect: Callable[[], list[Tensor]]
    expected: list[Tensor]

    @classmethod
    def of(cls, stack: Stack, k: int, plan: Plan, model: nn.Module, probe: Any) -> _Try | None:
        wanted_BT = wanted(plan)
        if wanted_BT is None or not bool(wanted_BT.any()):
            return None

        def collect() -> list[Tensor]:
            found: list[Tensor] = []

            def consume(part: Part, rows: Rows | Tensor, labels: Tensor | None) -> None:
                if not isinstance(rows, Rows):
                    found.append(rows)
                elif rows.head is None:
                    found.append(rows.inputs_BTH)
                else:
                    found.append(rows.inputs_BTH[rows.mask_BT])

            with stack.truncated(k):
                plan.each_part(model, probe, consume)
            return found

        return cls(wanted_BT, collect, collect())

    def holds(self, tried: Narrow, path: str) -> bool:
        """Whether nothing changes where layers are restricted, the last of which has this path."""
        try:
            with tried.opened(self.wanted_BT, fill=math.nan) as ran:
                got = self.collect()
        except (_Unfit, RuntimeError, ValueError, IndexError, TypeError):
            return False
        # NaN passes through weights of 0 too, as of an adapter that has learned nothing yet
        return path in ran and all(
            bool(a.isfinite().all()) and close(a, b)
            for a, b in zip(got, self.expected, strict=True)
        )


def _search(
    stack: Stack, k: int, others: tuple[int, ...], tries: list[_Try]
) -> dict[str, nn.Module]:
    """The outermost layers with matrices that may be restricted, one more at a time."""
    found: dict[str, nn.Module] = {}
    queue = [
        (f"{name}.{inner}", child)
        for name in stack.blocks[k - 1]
        for inner, child in stack.module(name).named_children()
    ]
    while queue:
        path, layer = queue.pop(0)
        if not any(p.ndim > 1 for p in layer.parameters()):
            continue
        tried = Narrow({**found, path: layer}, others)
        if all(one.holds(tried, path) for one in tries):
            found[path] = layer
        else:
            queue += [(f"{path}.{name}", child) for name, child in layer.named_children()]
    return found


def _restricted(
    forward: Callable[..., Any],
    shape: tuple[int, ...],
    index_N: Tensor,
    fill: float,
    note: Callable[[], None],
    *,
    strict: bool,
) -> Callable[..., Any]:
    """A forward on the positions that are wanted; on all where it is given something else."""

    def some(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.ndim != 3 or tuple(value.shape[:2]) != shape:
            return value
        return value.flatten(0, 1)[index_N.to(value.device, non_blocking=True)][None]

    def run(*args: Any, **kwargs: Any) -> Any:
        given = [some(value) for value in args]
        named = {name: some(value) for name, value in kwargs.items()}
        if all(a is b for a, b in zip(given, args, strict=True)):
            if strict:
                raise _Unfit
            return forward(*args, **kwargs)
        output = forward(*given, **named)
        if not isinstance(output, Tensor) or output.shape[:2] != (1, len(index_N)):
            if strict:
                raise _Unfit
            return forward(*args, **kwargs)
        note()
        whole = output.new_full((shape[0] * shape[1], output.shape[-1]), fill)
        whole[index_N.to(output.device, non_blocking=True)] = output[0]
        return whole.view(*shape, -1)

    return run
