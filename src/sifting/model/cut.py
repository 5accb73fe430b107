"""Where a forward can begin in the middle: behind the first blocks of a stack, or behind any module.

Whoever knows what a module there put out can leave out all that was run for it: stand-ins take the place of
what came before. They put out NaN, so that nothing of them can get into a result unseen.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sifting.model.call import logits_of
from sifting.model.features import Stopped, stopped_at, stopped_in
from sifting.model.find import get_module
from sifting.model.gate import Gate
from sifting.model.stack import Stack
from sifting.model.values import first_tensor, tensors_in, with_first_tensor
from sifting.model.wiring import Wiring
from sifting.rng import RandomState

RunModel = Callable[[], Any]
Member = tuple[nn.Module, str]  # a container, and the name of what is in it


class Cut(ABC):
    """A place behind which a forward can begin.

    Attributes:
        model: the model that it is in.
        before: what comes before it, in words.
        last: the module whose output is handed over.
    """

    model: nn.Module
    before: str
    last: nn.Module

    def __init__(self) -> None:
        self._left_out: list[Member] = []  # what stand-ins replace, once it is known
        self._outputs: dict[Member, Any] = {}  # what each of them put out, for its form

    @abstractmethod
    def stopped(self, run: RunModel) -> Tensor:
        """What is there, of a forward that goes no further."""

    @abstractmethod
    def members(self, run: RunModel) -> list[Member]:
        """What need not be run to begin here; the last of them is the place itself."""

    def unfit(self, run: RunModel) -> str | None:
        """Why no forward can begin here; None where it can.

        Args:
            run: puts some samples through the whole model as it is trained, and leaves no trace.
        """
        self._left_out = self.members(run)
        outputs: dict[Member, Any] = {}

        def note(member: Member) -> Callable[..., None]:
            def leave(module: nn.Module, args: Any, output: Any) -> None:
                tensor = first_tensor(output)
                if member not in outputs and tensor is not None:  # which may be written to later
                    outputs[member] = with_first_tensor(output, tensor.detach().clone())

            return leave

        handles = [held(member).register_forward_hook(note(member)) for member in self._left_out]
        streams = RandomState.now()
        try:
            whole = run()
        finally:
            for handle in handles:
                handle.remove()
        self._outputs = outputs
        for member in self._left_out:
            tensors = list(tensors_in(outputs.get(member)))
            if len(tensors) != 1 or not tensors[0].is_floating_point() or tensors[0].is_nested:
                return f"{type(held(member)).__name__} before it puts out more than one tensor of real numbers"
        streams.restore()
        with self.begun(outputs[self._left_out[-1]]):
            begun = run()
        streams.restore()
        pairs = list(zip(_results(whole), _results(begun), strict=False))
        if not pairs or not all(torch.equal(a, b) for a, b in pairs):
            return "what comes after it also looks at what was computed before it"
        return None

    @contextmanager
    def begun(self, output: Any) -> Iterator[None]:
        """While open, a forward begins here.

        Args:
            output: of the module at this place.
        """
        beginning = BegunForward(self._left_out, self._outputs, output)
        try:
            yield
        finally:
            beginning.end()

    def begin(self, output: Any) -> BegunForward:
        """The same, until it is told to end."""
        return BegunForward(self._left_out, self._outputs, output)


class BegunForward:
    """Stand-ins for what a forward leaves out; they are in their places until `end`.

    Args:
        members: what is left out.
        outputs: what each of them once put out.
        output: what the last of them puts out now.
    """

    def __init__(self, members: list[Member], outputs: Mapping[Member, Any], output: Any) -> None:
        self._outputs, self._output = outputs, output
        self._reached = self._over = False
        self._held = [(member, held(member)) for member in members]
        for member, module in self._held:
            container, name = member
            act = self._here if member == members[-1] else partial(self._earlier, member)
            container._modules[name] = Gate(module, act)

    def end(self) -> None:
        """Put back what was there. A checkpoint may still call a stand-in, when it computes again."""
        self._over = True
        for (container, name), module in self._held:
            container._modules[name] = module

    def _here(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self._reached and not self._over:  # it is used once more further on
            return block(*args, **kwargs)
        self._reached = True
        hidden = first_tensor(self._output)
        assert hidden is not None
        # another tensor each time: a checkpoint makes what is put out in it a part of its graph
        found = hidden.detach()
        if hidden.requires_grad:
            found = found.requires_grad_().clone()  # no leaf, which nobody may write to
        return with_first_tensor(self._output, found)

    def _earlier(
        self, member: Member, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._reached and not self._over:
            return block(*args, **kwargs)
        hidden = first_tensor(self._output)
        assert hidden is not None
        found = nothing_like(self._outputs[member], len(hidden))
        if self._over:  # a checkpoint wants to go back through it
            for tensor in tensors_in(found):
                tensor.requires_grad_()
        return found


class BlockCut(Cut):
    """Behind the k-th block of a stack.

    >>> from sifting.model.find import find_stack
    >>> model = nn.Sequential(nn.Linear(2, 3), *[nn.Linear(3, 3) for _ in range(4)], nn.Linear(3, 9))
    >>> cut = BlockCut(model, find_stack(model), 2)
    >>> cut.before, [name for _, name in cut.members(lambda: None)]
    ("the first 2 blocks of ''", ['1', '2'])
    """

    def __init__(self, model: nn.Module, stack: Stack, k: int) -> None:
        super().__init__()
        self.model, self.stack, self.k = model, stack, k
        self.before = f"the first {k} blocks of {stack.path!r}"
        self.last = stack.module(stack.blocks[k - 1][-1])

    def stopped(self, run: RunModel) -> Tensor:
        return stopped_in(self.stack, self.k, run)

    def members(self, run: RunModel) -> list[Member]:
        return [
            (self.stack.container, name) for block in self.stack.blocks[: self.k] for name in block
        ]

    def unfit(self, run: RunModel) -> str | None:
        if self.stack.repeats > 1 or self.stack.wiring != Wiring():
            return f"the blocks of {self.stack.path!r} are not a plain chain"
        return super().unfit(run)


class ModuleCut(Cut):
    """Behind any module: all that has run when it has put out its result is left out.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 9))
    >>> cut = ModuleCut(model, "1")
    >>> cut.unfit(lambda: model(torch.ones(4, 2)))
    >>> with cut.begun(torch.zeros(4, 3)):
    ...     torch.equal(model(torch.ones(4, 2)), model[2].bias.expand(4, 9))
    True
    """

    def __init__(self, model: nn.Module, path: str) -> None:
        super().__init__()
        self.model, self.path = model, path
        self.before = f"the modules up to {path!r}"
        self.last = get_module(model, path, "exit")

    def stopped(self, run: RunModel) -> Tensor:
        return stopped_at(self.last, run)

    def members(self, run: RunModel) -> list[Member]:
        over: dict[nn.Module, None] = {}
        with noting(self.model, over):
            self.stopped(run)
        over[self.last] = over.pop(self.last, None)
        homes = {
            child: (module, name)
            for module in self.model.modules()
            for name, child in module._modules.items()
            if child is not None
        }
        whole = [module for module in over if module in homes and homes[module][0] not in over]
        return [homes[module] for module in whole]


@contextmanager
def noting(model: nn.Module, over: dict[nn.Module, None]) -> Iterator[None]:
    """While open, modules of a model are noted as they put out their results."""

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        over[module] = None

    # before hooks that stop a forward
    handles = [module.register_forward_hook(leave, prepend=True) for module in model.modules()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def frozen_place(model: nn.Module, run: RunModel) -> str | None:
    """Path of the last module that has put out its result, one tensor, when the first that is trained begins.

    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 9))
    >>> _ = model[0].requires_grad_(False)
    >>> frozen_place(model, lambda: model(torch.ones(4, 2)))
    '1'
    """
    over: dict[str, Any] = {}

    def enter(module: nn.Module, args: Any) -> None:
        if any(p is not None and p.requires_grad for p in module._parameters.values()):
            raise Stopped(None)

    with ExitStack() as handles, suppress(Stopped):
        for path, module in model.named_modules():
            handles.enter_context(module.register_forward_pre_hook(enter))
            handles.enter_context(
                module.register_forward_hook(
                    lambda module, args, output, path=path: over.update({path: output})
                )
            )
        run()
        return None  # nothing is trained
    single = [path for path, output in over.items() if path and len(list(tensors_in(output))) == 1]
    return single[-1] if single else None


def nothing_like(output: Any, size: int) -> Any:
    """What a module put out with NaN in it, of so many samples.

    >>> nothing_like(torch.zeros(2, 1), 3)
    tensor([[nan],
            [nan],
            [nan]])
    """
    tensor = first_tensor(output)
    assert tensor is not None
    shape = (size, *tensor.shape[1:]) if tensor.ndim else ()
    return with_first_tensor(output, tensor.new_full(shape, torch.nan))


def trained_through(states: Sequence[Tensor], ran: Iterable[nn.Module], model: nn.Module) -> bool:
    """Whether a parameter gets a gradient from what is there in the middle of a forward.

    That it requires one is not enough: where blocks are checkpointed, people have their inputs require
    gradients, so that those behind them are reached at all.

    Args:
        states: what a module put out, and what it was given: a checkpoint hides how the one comes of the other.
        ran: the modules that were run for it.
        model: that they are in.
    """
    if any(p is not None and p.requires_grad for m in ran for p in m._parameters.values()):
        return True
    own = {id(parameter) for parameter in model.parameters()}
    seen, waiting = set(), [state.grad_fn for state in states]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if id(getattr(node, "variable", None)) in own:
            return True
        waiting += [further for further, _ in node.next_functions]
    return any(id(state) in own and state.requires_grad for state in states)


def held(member: Member) -> nn.Module:
    """The module of a container that has this name.

    >>> model = nn.Sequential(nn.ReLU())
    >>> held((model, "0")) is model[0]
    True
    """
    container, name = member
    found = container._modules[name]
    assert found is not None
    return found


def _results(output: Any) -> list[Tensor]:
    return list(tensors_in(output)) or list(logits_of(output).values())
