"""Being asked to stop: Ctrl-C and SIGTERM."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

PATIENCE = 1.0  # seconds; torchrun sends each of its signals twice within milliseconds


def exit_code(reason: str | None) -> int:
    """The code that a command ends with after a signal, as shells have it: 128 and its number.

    >>> exit_code("SIGINT"), exit_code("SIGTERM"), exit_code("KeyboardInterrupt"), exit_code(None)
    (130, 143, 130, 0)
    """
    if reason is None:
        return 0
    known = {each.name: int(each) for each in signal.Signals}
    return 128 + known.get(reason, int(signal.SIGINT))


def at_once(interrupt: KeyboardInterrupt) -> str:
    """The name of the signal that stopped a run in the middle of an update.

    >>> at_once(KeyboardInterrupt("SIGTERM")), at_once(KeyboardInterrupt())
    ('SIGTERM', 'SIGINT')
    """
    return str(interrupt) or "SIGINT"


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
            raise KeyboardInterrupt(signal.Signals(number).name)

    try:
        before = {s: signal.signal(s, hear) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread, where signals do not arrive anyway
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
