from __future__ import annotations

from typing import Any

import pytest

from sifting.training.progress import describe, progress_line


def test_the_progress_line_says_what_matters() -> None:
    seen: dict[str, Any] = {"accuracy": 0.5}
    line = describe(
        "sift",
        {
            "step": 50,
            "planned": 100,
            "loss": 1.0,
            "samples_trained": 1000,
            "seconds": {"scoring": 1.0, "forward": 9.0},
            "selection": {"rho_approx": 1.25},
        },
        seen,
    )
    assert line == (
        "sift  step 50/100  loss 1.000  accuracy 50.00%  100 samples/s  scoring 10 %  rho 1.25  left 0:00:10"
    )


RECORD: dict[str, Any] = {
    "kind": "train",
    "step": 5,
    "planned": 10,
    "samples_trained": 50,
    "seconds": {"forward": 1.0},
}


def test_without_a_terminal_each_evaluation_is_a_line_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with progress_line("sift") as watch:
        watch({**RECORD, "loss": 2.0})
        assert capsys.readouterr().out == ""
        watch({**RECORD, "kind": "eval", "accuracy": 0.25})
        assert capsys.readouterr().out.startswith("sift  step 5/10  loss 2.000  accuracy 25.00%")
    with progress_line("sift", shown=False) as watch:
        watch({**RECORD, "kind": "eval"})
    assert capsys.readouterr().out == ""


def test_in_a_terminal_one_line_is_rewritten(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes this for a terminal
    monkeypatch.setenv("TERM", "xterm")
    with progress_line("sift") as watch:
        watch({**RECORD, "loss": 2.0})
        watch({**RECORD, "step": 6, "loss": 1.0})
    assert "step 6/10" in capsys.readouterr().out
