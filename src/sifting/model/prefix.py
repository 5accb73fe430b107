"""Frozen prefixes: what scoring has computed of the kept samples, handed to the training forward.

Where nothing that is trained comes before the exit (adapters on upper blocks, frozen backbones), the blocks up
to it give a kept sample the very state in training that they gave it in scoring. Stand-ins for these blocks
then return that state, for the length of a forward that is given the very tensors that were handed out.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sifting.model.call import Call, parameters
from sifting.model.features import stopped_in
from sifting.model.gate import Gate
from sifting.model.no_trace import buffers_of, no_trace, put_buffers_back, repacks_itself
from sifting.model.stack import Stack, StackError
from sifting.model.values import first_tensor, tensors_in, with_first_tensor
from sifting.model.wiring import Wiring
from sifting.rng import StreamWatch

Key = tuple[Any, ...]


@dataclass
class Passage:
    """What passed the exit in one scoring pass.

    Attributes:
        calls: arguments of the model, by name, in each of its calls.
        outputs: of the last block before the exit.
        autocast: that was open.
    """

    calls: list[dict[str, Any]] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    autocast: Key = ()


class Prefix:
    """The blocks of a model up to an exit, where nothing before them is trained.

    Args:
        model: the model, without wrappers.
        stack: its blocks.
        k: the exit.
        call: how the model is called.
    """

    def __init__(self, model: nn.Module, stack: Stack, k: int, call: Call) -> None:
        self.model, self.stack, self.k, self.call = model, stack, k, call
        self.reused = 0  # forwards in which it was left out
        self._verdicts: dict[Key, str | None] = {}

    @property
    def key(self) -> Key:
        """What decides whether the prefix gives in training what it gives in scoring."""
        modes = tuple(module.training for module in self.model.modules())
        return (*modes, *(parameter.requires_grad for parameter in self.model.parameters()))

    @property
    def names(self) -> list[str]:
        """Its modules, in the stack's container."""
        return [name for block in self.stack.blocks[: self.k] for name in block]

    @contextmanager
    def watched(self) -> Iterator[Passage]:
        """While open, what passes the exit is noted."""
        passage = Passage()
        last = self.stack.module(self.stack.blocks[self.k - 1][-1])

        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            passage.calls.append(self._named(args, kwargs))
            passage.autocast = _autocast(self.model)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            passage.outputs.append(output)

        handles = [
            self.model.register_forward_pre_hook(enter, with_kwargs=True),
            last.register_forward_hook(leave),
        ]
        try:
            yield passage
        finally:
            for handle in handles:
                handle.remove()

    def refused(self, batch: Any) -> str | None:
        """Why the prefix cannot be handed over as the model is now; None where it can.

        It is run on some samples as it is trained, once for each setting of modes and of what is
        trained; nothing of that stays.

        Args:
            batch: candidates, on the model's device.
        """
        key = self.key
        if key not in self._verdicts:
            self._verdicts[key] = self._tried(batch)
        return self._verdicts[key]

    def _tried(self, batch: Any) -> str | None:
        stack, samples, model = self.stack, self.call.samples, self.model
        if stack.repeats > 1 or stack.wiring != Wiring():
            return f"the blocks of {stack.path!r} are not a plain chain"
        if samples.documents(batch) is not None:
            return "its batches are packed, several samples in a row"
        some = samples.take(batch, torch.arange(min(4, samples.size(batch))))

        def run() -> Any:
            return self.call.run(model, some)

        modes = [(module, module.training) for module in model.modules()]
        buffers = [(module, buffers_of(module)) for module, _ in modes]
        try:
            with no_trace(model):
                scored = stopped_in(stack, self.k, run)
                for module, mode in modes:
                    module.training = mode or repacks_itself(module)
                streams = StreamWatch(scored.device)
                with torch.enable_grad():
                    trained = stopped_in(stack, self.k, run)
                drawn = streams.drawn
        except (StackError, ValueError) as error:
            return str(error)
        finally:
            for module, copies in buffers:
                put_buffers_back(module, copies, always=True)
        if trained.requires_grad:
            return f"parameters before block {self.k + 1} of {stack.path!r} are trained"
        if drawn:
            return f"the first {self.k} blocks of {stack.path!r} draw random numbers in training (dropout)"
        if not torch.equal(scored, trained):
            return (
                f"the first {self.k} blocks of {stack.path!r} compute something else in training than in eval "
                "mode (batch norm)"
            )
        return None

    def handed(
        self, passage: Passage, batch: Any, kept: Any, indices_K: Tensor, size: int
    ) -> PrefixStates | None:
        """What a training forward of the kept is given; None where they cannot be told again.

        Args:
            passage: of the scoring pass.
            batch: the candidates, as they were scored.
            kept: the batch that is handed out.
            indices_K: which of the candidates those are.
            size: how many candidates there are.
        """
        if len(passage.calls) != 1 or len(passage.outputs) != 1:
            return None
        output, (given,) = passage.outputs[0], passage.calls
        hidden = first_tensor(output)
        if hidden is None or len(list(tensors_in(output))) != 1 or len(hidden) != size:
            return None
        try:
            before = self.call.samples.columns(batch, size=size)
            after = self.call.samples.columns(kept, size=len(indices_K))
        except ValueError:
            return None
        wanted: dict[str, Any] = {}
        for name, value in given.items():
            if isinstance(value, Tensor):
                place = next((i for i, column in enumerate(before) if column is value), None)
                if place is None or not isinstance(after[place], Tensor):
                    return None
                wanted[name] = after[place]
            elif any(True for _ in tensors_in(value)):
                return None
            else:
                wanted[name] = value
        rows = hidden.index_select(0, indices_K.to(hidden.device))
        labels = [id(value) for value in self.call.labels_of(kept).values()]
        return PrefixStates(
            self, with_first_tensor(output, rows), rows, wanted, labels, self.key, passage.autocast
        )

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name; what is None as well be left out."""
        names = [
            name
            for name, parameter in parameters(self.model).items()
            if parameter.kind
            in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
        ]
        named = {(names[i] if i < len(names) else f"*{i}"): value for i, value in enumerate(args)}
        return {name: v for name, v in {**named, **kwargs}.items() if v is not None}


class PrefixStates:
    """The states of the samples of one batch, for a forward that is given that very batch."""

    def __init__(
        self,
        prefix: Prefix,
        output: Any,
        hidden: Tensor,
        wanted: Mapping[str, Any],
        labels: list[int],
        key: Key,
        autocast: Key,
    ) -> None:
        self.prefix, self.output, self.hidden = prefix, output, hidden
        self.wanted, self.labels, self.key, self.autocast = wanted, labels, key, autocast
        self.parameters = _versions(prefix.model)
        self.versions = [v._version for v in (hidden, *_tensors(wanted))]
        self._held: dict[str, nn.Module | None] = {}

    @contextmanager
    def offered(self) -> Iterator[None]:
        """While open, a training forward that is given the batch starts after the exit."""
        model = self.prefix.model
        handles = [
            model.register_forward_pre_hook(self._enter, with_kwargs=True),
            model.register_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            self._leave()

    def fits(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether a forward is the one that these states belong to."""
        prefix = self.prefix
        given = prefix._named(args, kwargs)
        for name, value in given.items():
            if id(value) in self.labels and name not in self.wanted:
                continue
            own = self.wanted.get(name)
            same = value is own if isinstance(value, Tensor) else bool(own == value)
            if name not in self.wanted or not same:
                return False
        return (
            self.wanted.keys() <= given.keys()
            and torch.is_grad_enabled()
            and not torch.compiler.is_compiling()
            and self.autocast == _autocast(prefix.model)
            and self.versions == [v._version for v in (self.hidden, *_tensors(self.wanted))]
            and self.key == prefix.key
            and self._frozen_as_before()
        )

    def _frozen_as_before(self) -> bool:
        """Whether nothing has written the parameters that are not trained."""
        return self.parameters == _versions(self.prefix.model)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        if not self._held and self.fits(args, kwargs):
            container = self.prefix.stack.container
            self._held = {name: container._modules[name] for name in self.prefix.names}
            self.prefix.reused += 1
            for name, block in self._held.items():
                assert block is not None
                container._modules[name] = Gate(block, lambda *_: self.output)

    def _leave(self, *_: Any) -> None:
        held, self._held = self._held, {}
        self.prefix.stack.container._modules.update(held)


def _versions(model: nn.Module) -> list[tuple[int, int]]:
    frozen = (p for p in model.parameters() if not p.requires_grad)
    return [(id(parameter), parameter._version) for parameter in frozen]


def _tensors(wanted: Mapping[str, Any]) -> list[Tensor]:
    return [value for value in wanted.values() if isinstance(value, Tensor)]


def _autocast(model: nn.Module) -> Key:
    device = next((p.device.type for p in model.parameters()), "cpu")
    on = torch.is_autocast_enabled(device)
    return on, torch.get_autocast_dtype(device) if on else None
