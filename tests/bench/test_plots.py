"""Pictures of the proving ground."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from sifting.bench.plots import curves, pairs, predicted


def test_measured_savings_are_of_the_time_or_of_other_baselines() -> None:
    result = {
        "arms": {
            "auto": {"time_ratio": {"value": 0.9}, "difference": None},
            "memory": {"time_ratio": None, "difference": None},
        },
        "worth": {"memory": {"value": 1.2}},
        "lower_is_better": False,
        "advice": {"arms": {"auto": {"saving": 0.2}, "memory": {"saving": -0.1}, "tuned": {}}},
    }
    found = [(arm, said, round(was, 3)) for _, arm, said, was in pairs({"mine": result})]
    assert found == [("auto", 0.2, 0.1), ("memory", -0.1, -0.2)]


def result() -> dict[str, Any]:
    curve = {"seconds": [1.0, 2.0, 4.0], "updates": [1.0, 2.0, 4.0], "metric": [0.5, 0.6, 0.7]}
    arm = {"time_ratio": None, "difference": {"value": 0.0}}
    return {
        "arms": {"baseline": arm, "random": arm, "memory": arm},
        "curves": {"baseline": curve, "random": curve, "memory": curve, "sift": {"metric": []}},
        "metric": "accuracy",
        "percent": True,
        "lower_is_better": False,
        "target": 0.65,
        "worth": {},
    }


def words_of(svg: bytes) -> str:
    return "".join(ET.fromstring(svg).itertext())


def test_curves_of_the_arms_that_were_run_are_drawn() -> None:
    words = words_of(curves("digits", result()))
    for word in ("baseline", "random", "memory", "accuracy (%)", "time ÷ the baseline's"):
        assert word in words
    assert "sift" not in words, "it has no curve"


def test_predictions_are_drawn_one_mark_a_task() -> None:
    svg = predicted([("digits", "auto", 0.1, 0.2), ("fashion", "auto", 0.2, 0.1)])
    words = words_of(svg)
    assert "digits" in words
    assert "fashion" in words
    assert "predicted saving (%)" in words
