"""From scores to indices and weights: pure."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sifting.selection.policies import Percentile, Policy, Proportional, Random, Top
    from sifting.selection.tokens import HardestTokens, MeanOfTokens, ShareOfTokens, SumOfTokens

_POLICIES = ("Percentile", "Policy", "Proportional", "Random", "Top")

__all__ = [
    "HardestTokens",
    "MeanOfTokens",
    "Percentile",
    "Policy",
    "Proportional",
    "Random",
    "ShareOfTokens",
    "SumOfTokens",
    "Top",
]


def __getattr__(name: str) -> Any:
    """Import torch only for what needs it: schedules do not."""
    if name not in __all__:
        raise AttributeError(f"module 'sifting.selection' has no attribute {name!r}")
    home = "policies" if name in _POLICIES else "tokens"
    return getattr(importlib.import_module(f"sifting.selection.{home}"), name)
