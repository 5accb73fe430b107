from __future__ import annotations

from tests.fuzz import REGISTERED
from tests.fuzz.wiring import FUZZ


def test_models_joined_at_random_are_right_or_refused() -> None:
    outcomes = FUZZ.run(examples=60)
    assert REGISTERED["wiring"] is FUZZ
    assert outcomes["right"] > 0
    assert outcomes["refused"] > 0
