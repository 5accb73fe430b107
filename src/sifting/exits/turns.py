"""In what order a device does the work of a thread and that of the training step.

step's stream     refresh ─ ready ─▶ forward, backward ────────────── waits for read ─▶ optimizer.step
thread's stream               └─▶ waits for ready ─▶ candidates ─ read ─▶ scores to the host

The step is held by the device, at `read`, and its host goes on to queue it: only who asks for the scores
waits for them. Where work is done when it is called (a CPU), the host is what is held.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from sifting.data.tree import leaves

LOWEST = 0  # CUDA's priorities go down to 0, which the default stream has too


class ThreadTurn:
    """One batch's work in a thread, and the step beside it.

    >>> turn = ThreadTurn(None)
    >>> with turn.working(batch=None):
    ...     turn.over
    False
    >>> turn.hold()   # returns, since all that was to be read is read
    >>> turn.over
    True

    Made by the thread that trains: what it has queued on the device so far is done first.

    Args:
        stream: of the thread; None where work is done when it is called.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._queued = threading.Event()
        self._read: Any = None
        self._ready = None
        if stream is not None:
            self._ready = torch.cuda.current_stream(stream.device).record_event()

    @property
    def over(self) -> bool:
        """Whether everything that reads what training writes is done, or queued."""
        return self._queued.is_set()

    @contextmanager
    def working(self, batch: Any) -> Iterator[None]:
        """In the thread: what is called inside reads parameters, and `batch`."""
        try:
            if self._stream is not None:
                self._stream.wait_event(self._ready)
                for leaf in leaves(batch):
                    if isinstance(leaf, Tensor) and leaf.is_cuda:
                        leaf.record_stream(self._stream)  # it may be freed before it is read
            yield
        finally:
            if self._stream is not None:
                self._read = self._stream.record_event()
            self._queued.set()

    def ended(self, *_: Any) -> None:
        """The thread is done, if only since it failed before it read anything: nobody waits for it."""
        self._queued.set()

    def hold(self) -> None:
        """In the thread that trains: what it queues from here on may write what was read."""
        self._queued.wait()
        if self._read is not None:
            torch.cuda.current_stream(self._stream.device).wait_event(self._read)


def side_stream(device: torch.device) -> Any:
    """A stream for the thread, of the lowest priority there is; None where there are none."""
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device, priority=LOWEST)  # type: ignore[no-untyped-call]
