from __future__ import annotations

from tests.fuzz import REGISTERED
from tests.fuzz.losses import FUZZ


def test_generated_losses_are_right_or_refused() -> None:
    outcomes = FUZZ.run(examples=400)
    assert REGISTERED["losses"] is FUZZ
    assert outcomes["right"] > outcomes["refused"] > 0
