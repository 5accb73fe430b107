from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import tests.fuzz.batches
from tests.fuzz import REGISTERED, Fuzz
from tests.fuzz.__main__ import main


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_generated_batches_are_divided_right_or_refused() -> None:
    outcomes = tests.fuzz.batches.FUZZ.run(examples=300)
    assert outcomes["right"] > 100  # refusing everything would be right, too
    assert outcomes["refused"] > 0
    assert "batches" in REGISTERED


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
