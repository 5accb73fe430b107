"""`ahead=` and `reuse=` of a sifter: what they make, and what they do not go with."""

from __future__ import annotations

from typing import Any

from sifting.exits.beside import Beside
from sifting.exits.reuse import Reuse
from sifting.exits.scoring import Scorer


def make_beside(scorer: Scorer, ahead: Any, *, auto: bool) -> Beside | None:
    """What scores beside the training step, where ahead=1; raises where it cannot.

    Where nothing is ever scored (keep=1, policy="random"), there is nothing to do ahead either.
    """
    if isinstance(ahead, bool) or ahead not in (0, 1):
        raise ValueError(
            f"ahead={ahead!r}: choose 1, to score the next step's candidates while this one is trained, or 0"
        )
    exit = scorer.exit
    if not ahead or scorer.idle:
        return None
    if auto:
        raise ValueError(
            "ahead=1 and keep='auto': the autopilot decides after each step what the next one draws: give a "
            "fixed keep=, or leave out ahead="
        )
    if exit.by_id:
        raise ValueError(
            f"ahead=1: {exit!r} runs nothing to score, so that there is nothing to do ahead: leave it out"
        )
    if not exit.pipelined:
        said = repr(exit) if exit.settled else "exit='auto', which compares ways of scoring,"
        raise ValueError(
            f"ahead=1: {said} cannot score a copy of the model beside your step: choose exit=k, 'last' or "
            "'tuned', or leave out ahead="
        )
    if scorer.reference is not None:
        raise ValueError(
            "ahead=1 and score='reducible': a reference is taken off in the loop: leave out one of them"
        )
    if scorer.sharded:
        raise ValueError(
            "ahead=1: the model's parameters are sharded (fully_shard), and are gathered and freed by your "
            "step while they would be read: leave out ahead="
        )
    return Beside(scorer)


def make_reuse(scorer: Scorer, reuse: bool, *, scope: str, ahead: int) -> Reuse | None:
    """What hands a frozen prefix's states to the training forward, where reuse=True; raises where it cannot."""
    if not isinstance(reuse, bool):
        raise TypeError(f"reuse={reuse!r}: give True or False")
    if not reuse or scorer.idle:
        return None
    for name, value, clash in (("scope", scope, "global"), ("ahead", ahead, 1)):
        if value == clash:
            raise ValueError(
                f"reuse=True does not go with {name}={value!r}, where kept samples are not trained by the model "
                "that has scored them: leave out one of them"
            )
    shown = ", ".join(f"{name}={value!r}" for name, value in scorer.economy.shown().items())
    if shown:
        raise ValueError(
            f"reuse=True does not go with {shown}: what is scored is then not all that is trained: leave out one"
        )
    if scorer.sharded:
        raise ValueError(
            "reuse=True: the model's parameters are sharded (fully_shard), and blocks that are left out would "
            "not be gathered on all ranks alike: leave it out"
        )
    return Reuse(scorer)
