"""Exits: where a scoring pass leaves the model, and what it makes of what it finds there."""

from __future__ import annotations

from sifting.exits.base import Exit
from sifting.exits.block import BlockExit
from sifting.exits.tuned import TunedExit


def make_exit(exit: int | str | Exit) -> Exit:
    """The exit that the argument `exit=` stands for.

    >>> make_exit(3), make_exit("tuned")
    (BlockExit(3), TunedExit(None))
    """
    if isinstance(exit, Exit):
        return exit
    return TunedExit() if exit == "tuned" else BlockExit(exit)
