"""Progress between looks, by option."""

from __future__ import annotations

import pytest
import torch

from sifting.autopilot.noted import LOOKS, SETTLED, Noted, pooled
from sifting.autopilot.options import LADDER, Option
from sifting.measure.learning import Progress


def test_every_ratio_is_noted_and_only_the_last_looks_are_kept() -> None:
    noted, before = Noted(), torch.arange(8.0)
    for look in range(LOOKS + 2):
        noted.add("input", before, before - look, torch.arange(8.0))
    assert set(noted) == {Option("input", ratio) for ratio in LADDER}
    found = noted[Option("input", 2)]
    assert [one.kept + one.rest for one in found] == [2.0, 3.0, 4.0, 5.0]
    assert noted.recent(Option("memory", 2)) is None


def test_earlier_looks_count_only_while_the_last_two_say_too_little() -> None:
    early = Progress(0.1, 0.4, 1e-6, 1e-6)
    sure, unsure = Progress(0.3, 0.1, 1e-6, 1e-6), Progress(0.3, 0.1, 1e-2, 1e-2)
    recent = pooled([early, sure, sure])
    assert recent is not None
    assert recent.error <= SETTLED
    assert recent.share == pytest.approx(0.75)
    recent = pooled([early, unsure, unsure])
    assert recent is not None
    assert recent.share == pytest.approx(0.7 / 1.3)
