"""Exits: where a scoring pass leaves the model, and what it makes of what it finds there."""

from __future__ import annotations

from sifting.exits.auto import AutoExit
from sifting.exits.base import Exit
from sifting.exits.block import BlockExit
from sifting.exits.input import InputExit
from sifting.exits.tuned import TunedExit


def make_exit(exit: int | str | Exit) -> Exit:
    """The exit that the argument `exit=` stands for.

    >>> make_exit(3), make_exit("tuned"), make_exit("auto")
    (BlockExit(3), TunedExit(None), AutoExit(input, tuned, memory))
    """
    if isinstance(exit, Exit):
        return exit
    if exit == "auto":
        return AutoExit()
    if exit == "input":
        return InputExit()
    return TunedExit() if exit == "tuned" else BlockExit(exit)
