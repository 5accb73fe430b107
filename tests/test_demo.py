from __future__ import annotations

import pytest

from sifting import demo
from sifting.demo import Result


def results(base: list[float], other: list[float]) -> dict[str, list[Result]]:
    return {
        "baseline": [Result(a, 1.0, None) for a in base],
        "other": [Result(a, 1.5, None) for a in other],
    }


def test_the_verdict_follows_the_numbers() -> None:
    ahead = demo.verdict(results([0.90, 0.91, 0.89], [0.95, 0.96, 0.94]))
    assert (
        ahead
        == "other: ahead of the baseline at equal updates (+5.00 ± 0.00 points), in 1.50 of its time"
    )
    assert "behind" in demo.verdict(results([0.95, 0.96, 0.94], [0.90, 0.91, 0.89]))
    assert "no measurable difference" in demo.verdict(results([0.90, 0.91], [0.91, 0.90]))


def test_a_short_demo_runs_through(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main(["--seeds", "2", "--updates", "30"]) == 0
    shown = capsys.readouterr().out
    for name in demo.ARMS:
        assert name in shown
    assert "at equal updates" in shown


def test_too_small_a_demo_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        demo.main(["--seeds", "1"])
    assert "--seeds 1 --updates 600: give at least 2 and 20" in capsys.readouterr().err
