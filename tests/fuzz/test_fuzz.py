"""The short part of `make fuzz`: what is generated is right, or refused."""

from __future__ import annotations

import pytest

from tests.fuzz import REGISTERED, batches, losses, wiring
from tests.report.fuzz import check

CASES = 40


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_batches_are_divided_right_or_refused() -> None:
    assert REGISTERED["batches"] is batches.FUZZ
    outcomes = batches.FUZZ.run(examples=300)
    assert outcomes["right"] > 100  # refusing everything would be right, too
    assert outcomes["refused"] > 0


def test_losses_are_right_or_refused() -> None:
    assert REGISTERED["losses"] is losses.FUZZ
    outcomes = losses.FUZZ.run(examples=400)
    assert outcomes["right"] > outcomes["refused"] > 0


def test_models_joined_at_random_are_right_or_refused() -> None:
    assert REGISTERED["wiring"] is wiring.FUZZ
    outcomes = wiring.FUZZ.run(examples=60)
    assert outcomes["right"] > 0
    assert outcomes["refused"] > 0


@pytest.mark.parametrize("first", range(0, CASES, 10))
def test_hostile_folders_cost_no_page_and_run_nothing(first: int) -> None:
    """As many as asked for: `python -m tests.report.fuzz`."""
    for seed in range(first, min(first + 10, CASES)):
        try:
            check(seed, seconds=20)  # other work on the machine slows this one too
        except Exception as error:
            raise AssertionError(f"case {seed}: {type(error).__name__} {error}") from error
