"""What the library says besides warnings: a line now and then, by Python's own logging."""

from __future__ import annotations

import logging

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
