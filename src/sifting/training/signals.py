"""Being asked to stop: Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE = 1.0  # seconds; torchrun sends each of its signals twice within milliseconds


@contextmanager
def listening(ask: Callable[[str], None]) -> Iterator[None]:
    """Call `ask` with the name of a Ctrl-C or SIGTERM; one that comes later stops at once.

    >>> heard = []
    >>> with listening(heard.append):
    ...     signal.raise_signal(signal.SIGTERM)
    ...     signal.raise_signal(signal.SIGTERM)  # the same request, told twice
    >>> heard
    ['SIGTERM']
    """
    first: float | None = None

    def hear(number: int, frame: FrameType | None) -> None:
        nonlocal first
        now = time.monotonic()
        if first is None:
            first = now
            ask(signal.Signals(number).name)
        elif now - first > PATIENCE:
            raise KeyboardInterrupt

    try:
        before = {s: signal.signal(s, hear) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, where signals do not arrive anyway
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
