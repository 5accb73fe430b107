"""Spend backward passes only on the samples worth them.

from sifting import Sifter

sifter = Sifter(model)
for batch in sifter(loader):            # the loader you have: its batch size is what is trained
    loss = model(**batch).loss
    loss.backward(); optimizer.step(); optimizer.zero_grad()
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sifting._version import __version__

if TYPE_CHECKING:
    from sifting.advice.observing import advise
    from sifting.autopilot.trial import Trial
    from sifting.exits.additive import AdditiveExit
    from sifting.exits.base import Exit
    from sifting.exits.input import InputExit
    from sifting.exits.memory import MemoryExit
    from sifting.exits.tuned import TunedExit
    from sifting.measure.stats import SiftingWarning, Stats
    from sifting.sifter import Sifter
    from sifting.step import Selection

__all__ = [
    "AdditiveExit",
    "Exit",
    "InputExit",
    "MemoryExit",
    "Selection",
    "Sifter",
    "SiftingWarning",
    "Stats",
    "Trial",
    "TunedExit",
    "__version__",
    "advise",
]

_HOME = {
    "AdditiveExit": "exits.additive",
    "Exit": "exits.base",
    "InputExit": "exits.input",
    "MemoryExit": "exits.memory",
    "Selection": "step",
    "Sifter": "sifter",
    "SiftingWarning": "measure.stats",
    "Stats": "measure.stats",
    "Trial": "autopilot.trial",
    "TunedExit": "exits.tuned",
    "advise": "advice.observing",
}


def __getattr__(name: str) -> Any:
    """Import torch only when something that needs it is asked for: `sifting.theory` does not."""
    if name not in _HOME:
        raise AttributeError(f"module 'sifting' has no attribute {name!r}")
    return getattr(importlib.import_module(f"sifting.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
