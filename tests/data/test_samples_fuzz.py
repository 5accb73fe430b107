from __future__ import annotations

import pytest

import tests.fuzz.batches
from tests.fuzz import REGISTERED


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_generated_batches_are_divided_right_or_refused() -> None:
    outcomes = tests.fuzz.batches.FUZZ.run(examples=300)
    assert outcomes["right"] > 100  # refusing everything would be right, too
    assert outcomes["refused"] > 0
    assert "batches" in REGISTERED
