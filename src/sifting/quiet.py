"""Running a model without a trace: what a scoring pass may not change, kept and put back."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def quiet(model: nn.Module) -> Iterator[None]:
    """Evaluate a model inside, and leave it and every random stream as they were.

    >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    >>> with quiet(model):
    ...     model.training, torch.is_grad_enabled()
    (False, False)
    >>> model.training, model[0].num_batches_tracked.item()
    (True, 0)

    Gradients are off, every module is in eval mode; module modes, buffers and the random
    streams of Python, NumPy, the CPU and the model's CUDA devices are restored, also when the
    body raises. `torch.no_grad` is used rather than inference mode, since a cache that a model
    builds lazily under inference mode could not be used in training afterwards.
    """
    modes = [(module, module.training) for module in model.modules()]
    buffers = _impure_buffers(model)
    devices = sorted({p.device.index or 0 for p in model.parameters() if p.device.type == "cuda"})
    numpy = sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    try:
        with torch.random.fork_rng(devices=devices), torch.no_grad():
            for module, _ in modes:
                # the attribute, not .eval(): people override train() to keep layers frozen
                module.training = False
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        with torch.no_grad():
            for module, name, buffer, copy, version in buffers:
                if buffer._version != version:
                    buffer.copy_(copy)
                module._buffers[name] = buffer  # a forward may also have put another in its place
        random.setstate(python_state)
        if numpy is not None and numpy_state is not None:
            numpy.random.set_state(numpy_state)


def _impure_buffers(model: nn.Module) -> list[tuple[nn.Module, str, Tensor, Tensor, int]]:
    """Buffers that a forward in eval mode might write to, each with a copy and its version.

    The layers of torch.nn do not write to theirs in eval mode; other modules may.
    """
    return [
        (module, name, buffer, buffer.clone(), buffer._version)
        for module in model.modules()
        if not type(module).__module__.startswith("torch.nn.modules")
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
