"""The names under which a sifter's stats go to loggers, in every loop alike. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any


def logged(stats: Mapping[str, Any], only: Collection[str] | None = None) -> dict[str, float]:
    """A sifter's stats as flat names and numbers; what has not been measured yet is left out.

    >>> logged({"steps": 10, "rho_approx": 1.2, "recall": None, "seconds_scoring": 0.5})
    {'sifting/steps': 10.0, 'sifting/rho_approx': 1.2, 'seconds/scoring': 0.5}

    Args:
        stats: of `Sifter.stats()`, or some of them.
        only: the stats to log; all by default.
    """
    chosen = stats if only is None else [name for name in stats if name in only]
    return numbers({_name(stat): stats[stat] for stat in chosen})


def numbers(named: Mapping[str, Any]) -> dict[str, float]:
    """What of some values is a number.

    >>> numbers({"loss": 1, "note": "text", "flag": True, "recall": None})
    {'loss': 1.0}
    """
    return {
        name: float(value)
        for name, value in named.items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _name(stat: str) -> str:
    clock = stat.removeprefix("seconds_")
    return f"sifting/{stat}" if clock == stat else f"seconds/{clock}"
