"""What torch keeps for each thread: gradients off, autocast, devices; as scoring in a thread needs them."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Context:
    """What is open while the copy is scored: states that each thread has for itself."""

    device: torch.device
    autocast: torch.dtype | None
    default_device: torch.device
    stream: Any

    def open(self) -> ExitStack:
        stack = ExitStack()
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.no_grad())
        if self.device.type == "cuda":
            stack.enter_context(torch.cuda.device(self.device))
        if self.stream is not None:
            stack.enter_context(torch.cuda.stream(self.stream))
        if self.default_device.type != "cpu":
            stack.enter_context(self.default_device)
        if self.autocast is not None and not torch.is_autocast_enabled(self.device.type):
            kind = self.device.type
            stack.enter_context(torch.autocast(kind, dtype=self.autocast, cache_enabled=False))
        return stack


def prepare_thread() -> None:
    # Autocast keeps weights that it has cast in one cache for all threads. Those cast here, without
    # gradients, must not get into the forward that trains; nor may it be cleared when a context of this
    # thread ends, as the outermost does.
    torch.set_autocast_cache_enabled(False)
    torch.autocast_increment_nesting()
