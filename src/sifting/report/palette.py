"""Colours, line styles and marks: Okabe and Ito's, which colour-blind readers tell apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

CLOCKS = ("data", "scoring", "auditing", "forward", "backward", "optimizer", "evaluation")

# the baseline is neutral, arms have colours; each also has a dash and a mark of its own
LIGHT = ("#3f4650", "#8a6d00", "#0072b2", "#d55e00", "#009e73", "#b8568f", "#3b93c9", "#6a4fb3")
DARK = ("#d5dae1", "#e3c34d", "#5cb3ea", "#f28a4b", "#35c79c", "#e2a3c7", "#9ad4f5", "#b5a3ea")
DASHES: tuple[Any, ...] = (
    "solid",
    (0, (1, 1.4)),
    "solid",
    (0, (5, 1.6)),
    (0, (6, 1.5, 1.2, 1.5)),
    (0, (3, 1.2)),
    (0, (8, 2)),
    (0, (2, 1, 5, 1)),
)
MARKS = ("o", "x", "s", "^", "D", "v", "P", "X")
LIGHT_CLOCKS = ("#9aa1ab", "#d55e00", "#e69f00", "#56b4e9", "#0072b2", "#009e73", "#d3d7dd")
DARK_CLOCKS = ("#7f8794", "#f28a4b", "#f0bd4f", "#8accf2", "#3d97d3", "#35c79c", "#4a525e")


def place(arm: int) -> int:
    """Which colour an arm has; the neutral one is the baseline's alone.

    >>> [place(i) for i in (0, 7, 8, 14, 15)]
    [0, 7, 1, 7, 1]
    """
    return arm if arm < len(LIGHT) else 1 + (arm - len(LIGHT)) % (len(LIGHT) - 1)


def style(arm: int) -> tuple[Any, str]:
    """Dash and mark of an arm; one that shares another's colour has others.

    >>> style(1)[1], style(8)[1]
    ('x', '^')
    """
    turn = 0 if arm < len(LIGHT) else 1 + (arm - len(LIGHT)) // (len(LIGHT) - 1)
    return DASHES[(place(arm) + 3 * turn) % len(DASHES)], MARKS[
        (place(arm) + 2 * turn) % len(MARKS)
    ]


@dataclass(frozen=True)
class Palette:
    """Colours of a figure."""

    ink: str
    muted: str
    rule: str
    paper: str
    series: tuple[str, ...]
    clocks: tuple[str, ...]

    def of(self, index: int) -> str:
        """Colour of the arm with a number."""
        return self.series[place(index)]


PLAIN = Palette("#1c2026", "#5b6470", "#d9dde3", "#ffffff", LIGHT, LIGHT_CLOCKS)

# the page's own, so that a figure follows light and dark
THEMED = Palette(
    "currentColor",
    "var(--muted)",
    "var(--rule)",
    "var(--paper)",
    tuple(f"var(--s{i})" for i in range(len(LIGHT))),
    tuple(f"var(--k{i})" for i in range(len(CLOCKS))),
)


def variables(series: tuple[str, ...], clocks: tuple[str, ...]) -> str:
    """The colours as CSS variables.

    >>> variables(("#000000",), ("#ffffff",))
    '--s0:#000000;--k0:#ffffff'
    """
    named = [f"--s{i}:{c}" for i, c in enumerate(series)]
    return ";".join([*named, *(f"--k{i}:{c}" for i, c in enumerate(clocks))])
