"""What the library says: a line now and then by Python's own logging, and who hears its warnings."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_HEARERS: list[Callable[[str], None]] = []
LOGGER = logging.getLogger("sifting")


def say(message: str) -> None:
    """Log a line; on standard error where nobody has set up logging.

    >>> LOGGER.setLevel("ERROR")      # to silence it
    >>> say("scores are made of logits → labels")
    >>> LOGGER.setLevel("NOTSET")
    """
    if not LOGGER.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("sifting: %(message)s"))
        LOGGER.addHandler(handler)
    if LOGGER.level == logging.NOTSET and not logging.getLogger().handlers:
        LOGGER.setLevel(logging.INFO)
    LOGGER.info(message)


@contextmanager
def each_line_once() -> Iterator[None]:
    """While open, what `say` has said already is not said again: runs of a comparison are much alike.

    >>> import sys
    >>> handler = logging.StreamHandler(sys.stdout)
    >>> LOGGER.addHandler(handler)
    >>> LOGGER.setLevel("INFO")
    >>> with each_line_once():
    ...     say("scores are made of logits → labels")
    ...     say("scores are made of logits → labels")
    scores are made of logits → labels
    >>> LOGGER.removeHandler(handler)
    >>> LOGGER.setLevel("NOTSET")
    """
    said: set[str] = set()

    def fresh(record: logging.LogRecord) -> bool:
        line = record.getMessage()
        again = record.levelno == logging.INFO and line in said
        said.add(line)
        return not again

    LOGGER.addFilter(fresh)
    try:
        yield
    finally:
        LOGGER.removeFilter(fresh)


@contextmanager
def hearing(hear: Callable[[str], None]) -> Iterator[None]:
    """While open, `hear` is told every warning of the library, whatever Python's filters do with it.

    >>> said = []
    >>> with hearing(said.append):
    ...     warned("rho_approx is 0.9")
    >>> said
    ['rho_approx is 0.9']
    """
    _HEARERS.append(hear)
    try:
        yield
    finally:
        _HEARERS.remove(hear)


def warned(message: str) -> None:
    """Tell those who hear that the library warns."""
    for hear in list(_HEARERS):
        hear(message)
