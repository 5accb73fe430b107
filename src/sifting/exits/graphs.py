"""Scoring a compiled model: what runs up to the exit as graphs of its own, where that pays.

What the user compiled is the whole model at the size of a training batch, so scoring goes past it
to the modules themselves. Where the clock says that it is worth it, the blocks of a stack, or the modules
up to another place, are compiled once more, in eval mode, without gradients, by the same compiler and its
settings.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from sifting.exits.base import Exit
from sifting.log import say
from sifting.measure.stopwatch import now
from sifting.model.cut import ModuleCut, held
from sifting.model.gate import with_forward
from sifting.model.plan import Plan
from sifting.model.values import close
from sifting.parallel.detect import first_rank, sharded, unwrap

Compile = Callable[[Callable[..., Any]], Callable[..., Any]]

ROUNDS = 5  # in which both are timed, by turns
FASTER = 0.95  # of the time: less of a gain is not worth another graph


class Graphs:
    """Compiled modules up to an exit.

    >>> Graphs(torch.nn.Linear(2, 2)).on  # nothing of the model is compiled
    False

    Attributes:
        on: whether scoring uses them; None until it was measured.

    Args:
        model: the user's, wrapped as it is trained.
    """

    def __init__(self, model: nn.Module) -> None:
        found = None if sharded(unwrap(model)) else compiler_of(model)
        self.on: bool | None = False if found is None else None
        self._compile = found
        self._made: dict[nn.Module, Callable[..., Any]] = {}
        self._before: dict[str, list[nn.Module]] = {}  # what runs up to a place, by its path

    def fit(self, exit: Exit, plan: Plan) -> bool:
        """Whether an exit is one whose modules can be compiled.

        With `rows=` a block's layers run on other positions each time: that is no graph.
        """
        placed = exit.block is not None or getattr(exit, "place", None) is not None
        return exit.settled and placed and plan.rows is None

    def opened(self, exit: Exit, plan: Plan) -> AbstractContextManager[None]:
        """While open, what runs up to the exit runs as graphs, where those are on."""
        if not self.on or not self.fit(exit, plan):
            return nullcontext()
        return self._opened(exit)

    def seen(self, exit: Exit, model: nn.Module, run: Callable[[], Any]) -> None:
        """Find out which modules run up to an exit that is not a block.

        Args:
            exit: that scores.
            model: without wrappers.
            run: puts a batch through the model.
        """
        path = getattr(exit, "place", None)
        if exit.block is None and path is not None and path not in self._before:
            cut = ModuleCut(model, path)
            self._before[path] = [held(member) for member in cut.members(run)]

    def _modules(self, exit: Exit) -> list[nn.Module]:
        if exit.block is None:
            return self._before.get(str(getattr(exit, "place", None)), [])
        stack, k = exit.block
        return [stack.module(name) for names in stack.blocks[:k] for name in names]

    @contextmanager
    def _opened(self, exit: Exit) -> Iterator[None]:
        assert self._compile is not None
        with ExitStack() as opened:
            for module in self._modules(exit):
                if module not in self._made:
                    self._made[module] = self._compile(module.forward)
                opened.enter_context(with_forward(module, self._made[module]))
            yield

    def measure(self, run: Callable[[], Tensor], device: torch.device) -> None:
        """Find out, on one batch, whether they compile, give the same scores and are faster.

        Args:
            run: scores the batch, and leaves no trace.
            device: where.
        """
        seconds: dict[bool, list[float]] = {False: [], True: []}
        scores: dict[bool, Tensor] = {}
        try:
            for turn in range(ROUNDS + 1):
                for self.on in (False, True):
                    begin = now()
                    scores[self.on] = run()
                    if device.type == "cuda":
                        torch.cuda.synchronize(device)
                    if turn:  # the first of each compiles, or warms up
                        seconds[self.on].append(now() - begin)
        except Exception as error:  # of whatever kind a compiler has
            if self.on is not True:
                raise
            self._off(f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            return
        ratio = statistics.median(seconds[True]) / max(statistics.median(seconds[False]), 1e-12)
        if not close(scores[True].float(), scores[False].float()):
            self._off("their scores differ by more than rounding")
            return
        self.on = ratio < FASTER
        if first_rank():
            say(
                f"what runs up to the exit takes {ratio:.2f} of the time as compiled graphs of its own: "
                f"candidates are scored {'so' if self.on else 'by the modules as they are'}"
            )

    def _off(self, why: str) -> None:
        self.on = False
        if first_rank():
            say(f"candidates are scored without compiled graphs ({why})")

    def plain(self) -> int:
        """What was found, for a state: −1 where it was not measured."""
        return -1 if self.on is None else int(self.on)

    def take(self, found: int) -> None:
        """Continue with what was found before, where this model is compiled too."""
        if self._compile is not None and found >= 0:
            self.on = bool(found)


def compiler_of(model: nn.Module) -> Compile | None:
    """What a model is compiled by, with its settings where they can be had; None where it is not."""
    for module in model.modules():
        if isinstance(getattr(module, "_orig_mod", None), nn.Module):
            context = getattr(module, "dynamo_ctx", None)
            return context if callable(context) else torch.compile
        if module._compiled_call_impl is not None:  # model.compile(): its settings are not kept
            return torch.compile
    return None
