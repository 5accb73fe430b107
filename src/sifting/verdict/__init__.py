"""Does it pay? Statistics over the run folders of several arms and seeds, under one budget.

runs → curves → pairing (intervals) → deciding (power) → judging → wording (prose, formats), layout,
terminal
"""

from __future__ import annotations

from sifting.verdict.deciding import Decision
from sifting.verdict.judging import Verdict, judge

__all__ = ["Decision", "Verdict", "judge"]
