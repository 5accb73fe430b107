"""The short part of `make fuzz`: what is generated is right, or refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.fuzz import REGISTERED, Fuzz, batches, losses, wiring
from tests.fuzz.__main__ import main
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


def test_a_sweep_goes_on_where_it_was_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rounds: list[int] = []
    one = Fuzz._round

    def noting(self: Fuzz, examples: int, start: int | None) -> Counter[str]:
        rounds.append(start or 0)
        return one(self, examples, start)

    monkeypatch.setattr(Fuzz, "_round", noting)
    asked = ["--only", "packed", "--out", str(tmp_path)]
    assert main([*asked, "--examples", "3", "--seed", "5"]) == 0
    assert "packed: 3 right, 0 refused, 0 wrong, 0 crashed" in capsys.readouterr().out
    assert main([*asked, "--examples", "3"]) == 0
    assert rounds == [5]  # nothing was left to do
    assert main([*asked, "--examples", "5"]) == 0
    assert rounds == [5, 5 + 1_000_003]
    assert "seed 5, code" in capsys.readouterr().out
