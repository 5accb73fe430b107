"""Does it pay? Statistics over the run folders of several arms and seeds, under one budget.

runs → curves → pairing (intervals) → judging → wording, layout
"""

from __future__ import annotations

from sifting.verdict.judging import Verdict, judge

__all__ = ["Verdict", "judge"]
