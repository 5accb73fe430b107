"""Amounts of training as users write them: a number and a unit. Pure."""

from __future__ import annotations

import re
from typing import Literal

AmountKind = Literal["seconds", "updates", "samples"]
UNITS: dict[str, tuple[AmountKind, float]] = {
    **dict.fromkeys(("s", "sec", "second", "seconds"), ("seconds", 1.0)),
    **dict.fromkeys(("m", "min", "minute", "minutes"), ("seconds", 60.0)),
    **dict.fromkeys(("h", "hour", "hours"), ("seconds", 3600.0)),
    **dict.fromkeys(("u", "update", "updates", "step", "steps"), ("updates", 1.0)),
    **dict.fromkeys(("n", "sample", "samples"), ("samples", 1.0)),
}


def parse_amount(text: str, *, name: str, understood: str) -> tuple[AmountKind, float]:
    """Kind and amount.

    >>> parse_amount("10m", name="checkpoint_every", understood="updates (500u) or time (10m)")
    ('seconds', 600.0)

    Args:
        text: what the user wrote.
        name: what the user calls it, for messages.
        understood: what can be given, for messages.
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?|\.[0-9]+)\s*([a-z]+)", text.strip())
    if found is None or found[2] not in UNITS:
        raise ValueError(f"{name}={text!r} is not understood: give {understood}")
    kind, scale = UNITS[found[2]]
    amount = float(found[1]) * scale
    if amount <= 0:
        raise ValueError(f"{name}={text!r}: give more than 0")
    if kind != "seconds" and amount != int(amount):
        raise ValueError(f"{name}={text!r}: give a whole number of {kind}")
    return kind, amount
