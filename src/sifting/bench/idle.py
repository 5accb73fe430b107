"""Waiting until a machine is quiet enough for a run that is timed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

BUSY = 1.25  # load for each core, above which a timed run waits
EVERY = 30.0  # seconds between two looks


def load() -> float | None:
    """Processes that want to run, averaged over a minute; None where it cannot be determined."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def wait_until_quiet(
    say: Callable[[str], None],
    *,
    cores: int | None = None,
    look: Callable[[], float | None] = load,
    sleep: Callable[[float], None] = time.sleep,
) -> float:
    """Wait while the machine is busy; returns the seconds waited.

    >>> loads = iter([5.0, 3.0, 1.0])
    >>> wait_until_quiet(print, cores=2, look=lambda: next(loads), sleep=lambda seconds: None)
    waiting until the load is at most 2.5 (it is 5.0)
    60.0

    Args:
        say: tells the user.
        cores: of the machine; its own number by default.
        look: gives the load.
        sleep: waits some seconds.
    """
    most = BUSY * (cores or os.cpu_count() or 1)
    waited = 0.0
    while (now := look()) is not None and now > most:
        if not waited:
            say(f"waiting until the load is at most {most:g} (it is {now:.1f})")
        sleep(EVERY)
        waited += EVERY
    return waited
