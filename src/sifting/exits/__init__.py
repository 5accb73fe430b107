"""Exits: where a scoring pass leaves the model, and what it makes of what it finds there."""

from __future__ import annotations

from sifting.exits.auto import MEMORY, AutoExit
from sifting.exits.base import Exit
from sifting.exits.best import BestExit
from sifting.exits.block import BlockExit
from sifting.exits.input import InputExit
from sifting.exits.tuned import TunedExit


def make_exit(exit: int | str | Exit) -> Exit:
    """The exit that the argument `exit=` stands for, with a ratio that is given.

    >>> make_exit(3), make_exit("tuned"), make_exit("auto")
    (BlockExit(3), TunedExit(None), BestExit(not measured yet))

    With a fixed ratio, what "auto" has to find out is which exit pays best.
    """
    if isinstance(exit, AutoExit):
        return BestExit()
    if isinstance(exit, Exit):
        return exit
    if exit == "auto":
        return BestExit()
    if exit == "input":
        return InputExit()
    return TunedExit() if exit == "tuned" else BlockExit(exit)


def make_competing(exit: int | str | Exit) -> AutoExit:
    """Exits that an autopilot can decide about: several that compete, or the user's alone.

    >>> make_competing("auto"), make_competing(3)
    (AutoExit(input, tuned, memory), AutoExit(exit))
    """
    if isinstance(exit, AutoExit):
        return exit
    if exit == "auto":
        return AutoExit()
    named = make_exit(exit)
    return AutoExit({MEMORY if named.by_id else "exit": named})
