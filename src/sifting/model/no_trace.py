"""Running a model without a trace: what a scoring pass may not change, kept and put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sifting.rng import RandomState

# A module's buffers by name, each with a copy and its version; None for one that is registered and not set.
_Buffers = dict[str, tuple[Tensor, Tensor, int] | None]


@contextmanager
def no_trace(model: nn.Module) -> Iterator[None]:
    """Evaluate a model inside, and leave it and every random stream as they were.

    >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    >>> with no_trace(model):
    ...     model.training, torch.is_grad_enabled()
    (False, False)
    >>> model.training, model[0].num_batches_tracked.item()
    (True, 0)

    Gradients are off, every module is in eval mode, but quantised layers that would be changed by
    it; module modes, buffers and the random streams of Python, NumPy, the CPU and the model's CUDA
    devices are restored, also when the body raises. `torch.no_grad` is used rather than inference
    mode, since a cache that a model builds lazily under inference mode could not be used in
    training afterwards.
    """
    trace = _Trace(model)
    streams = RandomState.now()
    try:
        with (
            torch.random.fork_rng(devices=trace.devices, enabled=bool(trace.devices)),
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            trace.evaluate()
            yield
    finally:
        trace.undo()
        streams.restore()


class _Trace:
    """What a forward could leave behind in a model's modules, noted in one walk over them.

    Small networks are scored in little more than the time of such walks.
    """

    def __init__(self, model: nn.Module) -> None:
        self.modes: list[tuple[nn.Module, bool]] = []
        self.compiled: list[tuple[nn.Module, Any]] = []
        self.buffers: list[tuple[nn.Module, _Buffers]] = []
        places: set[torch.device] = set()
        on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # else nothing is there
        for module in every_module(model):
            self.modes.append((module, module.training))
            if module._compiled_call_impl is not None:
                self.compiled.append((module, module._compiled_call_impl))
            if not _pure(module):
                self.buffers.append((module, buffers_of(module)))
            if on_cuda:
                places |= {p.device for p in module._parameters.values() if p is not None}
        self.devices = sorted({place.index or 0 for place in places if place.type == "cuda"})

    def evaluate(self) -> None:
        """Put every module into eval mode, and past what it is compiled to."""
        for module, training in self.modes:
            mode = repacks_itself(module)
            if training is not mode:
                _put_mode(module, mode)
        # model.compile() replaces the call itself, past every hook and every change of the modules
        for module, _ in self.compiled:
            module._compiled_call_impl = None

    def undo(self) -> None:
        """Put everything back."""
        for module, training in self.modes:
            if module.training is not training:
                _put_mode(module, training)
        for module, call in self.compiled:
            module._compiled_call_impl = call
        for module, copies in self.buffers:
            put_buffers_back(module, copies)


def every_module(model: nn.Module) -> list[nn.Module]:
    """A model and all modules in it, each once, in the order of `modules()`, which takes ten times as long.

    >>> layer = nn.Linear(1, 1)
    >>> [type(m).__name__ for m in every_module(nn.Sequential(nn.Sequential(layer), layer))]
    ['Sequential', 'Sequential', 'Linear']
    """
    found, waiting = dict[nn.Module, None](), [model]
    while waiting:
        module = waiting.pop()
        if module not in found:
            found[module] = None
            children = module._modules
            if children:
                waiting += [child for child in reversed(children.values()) if child is not None]
    return list(found)


def first_parameter(model: nn.Module) -> Tensor | None:
    """The first that `parameters()` gives, which takes ten times as long to begin.

    >>> first_parameter(nn.Sequential(nn.ReLU(), nn.Linear(3, 2))).shape
    torch.Size([2, 3])
    """
    waiting = [model]
    while waiting:
        module = waiting.pop()
        for parameter in module._parameters.values():
            if parameter is not None:
                return parameter
        waiting += [child for child in reversed(module._modules.values()) if child is not None]
    return None


def _put_mode(module: nn.Module, training: bool) -> None:
    """Set the attribute, not by .eval(): people override train() to keep layers frozen."""
    if "training" in module.__dict__:
        module.__dict__["training"] = training  # without the checks of a module's __setattr__
    else:  # a scripted module, or a property of the user's
        module.training = training


def _pure(module: nn.Module) -> bool:
    """The layers of torch.nn do not write to their buffers in eval mode; other modules may."""
    return type(module).__module__.startswith("torch.nn.modules")


def repacks_itself(module: nn.Module) -> bool:
    """Whether eval mode would make a layer change its weights for good.

    The 4-bit layers of bitsandbytes do on some CPUs: they are packed, and rounded, for inference. Training mode
    means nothing else to them.

    >>> repacks_itself(nn.Linear(2, 2))
    False
    """
    return type(module).__module__.startswith("bitsandbytes.")


def buffers_of(module: nn.Module) -> _Buffers:
    """Each buffer with a copy and its version."""
    if not module._buffers:
        return {}
    return {
        name: None if buffer is None else (buffer, buffer.clone(), buffer._version)
        for name, buffer in module._buffers.items()
    }


def put_buffers_back(
    module: nn.Module,
    copies: _Buffers,
    *,
    always: bool = False,
) -> None:
    """Undo what was done to a module's buffers since `buffers_of`.

    Args:
        always: also where the version says that nothing was written, which kernels of training mode
            do not always tell.
    """
    if not copies and not module._buffers:
        return
    for name in module._buffers.keys() - copies.keys():
        del module._buffers[name]  # registered meanwhile
    with torch.no_grad():
        for name, saved in copies.items():
            if saved is None:
                module._buffers[name] = None
                continue
            buffer, copy, version = saved
            if always or buffer._version != version:
                buffer.copy_(copy)
            module._buffers[name] = buffer  # a forward may also have put another in its place
