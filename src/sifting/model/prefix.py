"""Frozen prefixes: what scoring has computed of the kept samples, handed to the training forward.

Where nothing that is trained comes before the exit (adapters on upper blocks, frozen backbones), the modules up
to it give a kept sample the very state in training that they gave it in scoring. Stand-ins (`model/cut.py`)
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

from sifting.data.tree import index_on
from sifting.model.call import Call, parameters
from sifting.model.cut import BegunForward, Cut, noting, trained_through
from sifting.model.no_trace import buffers_of, no_trace, put_buffers_back, repacks_itself
from sifting.model.values import first_tensor, tensors_in, with_first_tensor
from sifting.rng import StreamWatch

Key = tuple[Any, ...]
UNSAID = frozenset({"use_cache"})  # decoders keep keys and values unless they are told not to
# how the loss is made: transformers' Trainer tells its models by what to divide, TRL to keep no logits
OF_THE_LOSS = frozenset({"num_items_in_batch", "fused_lm_head"})


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
    """The part of a model up to an exit, where nothing of it is trained.

    Args:
        cut: the exit's place in the model.
        call: how the model is called.

    Attributes:
        reused: forwards in which it was left out.
    """

    def __init__(self, cut: Cut, call: Call) -> None:
        self.cut, self.model, self.call = cut, cut.model, call
        self.reused = 0
        self._verdicts: dict[Key, str | None] = {}
        self._wants_grad = False  # whether what is handed over has to, for what comes after it

    @property
    def key(self) -> Key:
        """What decides whether the prefix gives in training what it gives in scoring."""
        modes = tuple(module.training for module in self.model.modules())
        return (*modes, *(parameter.requires_grad for parameter in self.model.parameters()))

    @contextmanager
    def watched(self) -> Iterator[Passage]:
        """While open, what passes the exit is noted."""
        passage = Passage()

        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            passage.calls.append(self._named(args, kwargs))
            passage.autocast = _autocast(self.model)

        def leave(module: nn.Module, args: Any, output: Any) -> None:
            passage.outputs.append(output)

        handles = [
            self.model.register_forward_pre_hook(enter, with_kwargs=True),
            self.cut.last.register_forward_hook(leave),
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
        cut, samples, model = self.cut, self.call.samples, self.model
        if samples.documents(batch) is not None:
            return "its batches are packed, several samples in a row"
        some = samples.take(batch, torch.arange(min(4, samples.size(batch))))

        def run() -> Any:
            return self.call.run(model, some)

        modes = [(module, module.training) for module in model.modules()]
        buffers = [(module, buffers_of(module)) for module, _ in modes]
        ran: dict[nn.Module, None] = {}
        given: list[Tensor] = []

        def enter(module: nn.Module, args: Any, kwargs: Any) -> None:
            given.extend(tensors_in((args, kwargs)))

        try:
            with no_trace(model):
                scored = cut.stopped(run)
                for module, mode in modes:
                    module.training = mode or repacks_itself(module)
                streams = StreamWatch(scored.device)
                entered = cut.last.register_forward_pre_hook(enter, with_kwargs=True)
                with torch.enable_grad(), noting(model, ran), entered:
                    trained = cut.stopped(run)
                if trained_through([trained, *given], ran, model):
                    return f"parameters in {cut.before}, or before them, are trained"
                if streams.drawn:
                    return f"{cut.before} draw random numbers in training (dropout)"
                if not torch.equal(scored, trained):
                    return f"{cut.before} compute something else in training than in eval mode (batch norm)"
                self._wants_grad = any(state.requires_grad for state in (trained, *given))
                with torch.enable_grad():
                    return cut.unfit(run)
        except (ValueError, RuntimeError) as error:
            return str(error)
        finally:
            for module, copies in buffers:
                put_buffers_back(module, copies, always=True)

    def handed(
        self, passage: Passage, batch: Any, kept: Any, indices_K: Tensor, size: int
    ) -> PrefixStates | str:
        """What a training forward of the kept is given; why there is nothing, where they cannot be told again.

        Args:
            passage: of the scoring pass.
            batch: the candidates, as they were scored.
            kept: the batch that is handed out.
            indices_K: which of the candidates those are.
            size: how many candidates there are.
        """
        if len(passage.calls) != 1 or len(passage.outputs) != 1:
            return "candidates are scored in several passes (score_batch_size=)"
        output, (given,) = passage.outputs[0], passage.calls
        hidden = first_tensor(output)
        if hidden is None or len(list(tensors_in(output))) != 1 or len(hidden) != size:
            return f"{self.cut.before} do not put out one tensor with a row for each sample"
        changed = "the model is given something else than the batch holds (forward=, view=)"
        try:
            before = self.call.samples.columns(batch, size=size)
            after = self.call.samples.columns(kept, size=len(indices_K))
        except ValueError:
            return changed
        wanted: dict[str, Any] = {}
        for name, value in given.items():
            if isinstance(value, Tensor):
                place = next((i for i, column in enumerate(before) if column is value), None)
                if place is None or not isinstance(after[place], Tensor):
                    return changed
                wanted[name] = after[place]
            elif any(True for _ in tensors_in(value)):
                return changed
            else:
                wanted[name] = value
        rows = hidden.index_select(0, index_on(indices_K, hidden)).requires_grad_(self._wants_grad)
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
        self.missed: str | None = None  # why the last training forward did not begin with them
        self._begun: BegunForward | None = None

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

    def misfit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """Why a forward is not the one that these states belong to; None where it is."""
        prefix, wanted = self.prefix, self.wanted
        given = prefix._named(args, kwargs)
        for name, value in given.items():
            if name not in wanted and (id(value) in self.labels or name in OF_THE_LOSS):
                continue
            if isinstance(value, Tensor) and value is not wanted.get(name):
                return f"your forward is given another tensor as {name!r} than the batch that was handed out has"
            if name not in wanted or (not isinstance(value, Tensor) and wanted[name] != value):
                shown = repr(wanted[name]) if name in wanted else "nothing"
                return f"your forward is given {name}={value!r}, where candidates are scored with {shown}"
            if isinstance(value, Tensor) and value.requires_grad:
                return f"your forward is given {name!r} to take gradients of, which left-out blocks would not give"
        missing = wanted.keys() - given.keys() - UNSAID
        if missing:
            return f"your forward is not given {min(missing)!r}, and candidates are scored with it"
        if self.autocast != _autocast(prefix.model):
            return "your forward runs under another autocast than candidates are scored under"
        if self.versions != [v._version for v in (self.hidden, *_tensors(wanted))]:
            return "what your forward is given was written to since it was handed out"
        if self.key != prefix.key or not self._frozen_as_before():
            return "modes, or what is trained, or parameters that are not, change from batch to forward"
        return None

    def _frozen_as_before(self) -> bool:
        """Whether nothing has written the parameters that are not trained."""
        return self.parameters == _versions(self.prefix.model)

    def _enter(self, module: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        if self._begun is not None or not torch.is_grad_enabled() or torch.compiler.is_compiling():
            return None
        self.missed = self.misfit(args, kwargs)
        if self.missed is not None:
            return None
        self._begun = self.prefix.cut.begin(self.output)
        self.prefix.reused += 1
        return args, {**self._unsaid(args, kwargs), **kwargs}

    def _unsaid(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """What this forward leaves out, and a cache could not be kept by: blocks are missing."""
        given = self.prefix._named(args, kwargs)
        return {name: self.wanted[name] for name in UNSAID if name in self.wanted.keys() - given}

    def _leave(self, *_: Any) -> None:
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.end()


def _versions(model: nn.Module) -> list[tuple[int, int]]:
    frozen = (p for p in model.parameters() if not p.requires_grad)
    return [(id(parameter), parameter._version) for parameter in frozen]


def _tensors(wanted: Mapping[str, Any]) -> list[Tensor]:
    return [value for value in wanted.values() if isinstance(value, Tensor)]


def _autocast(model: nn.Module) -> Key:
    device = next((p.device.type for p in model.parameters()), "cpu")
    on = torch.is_autocast_enabled(device)
    return on, torch.get_autocast_dtype(device) if on else None
