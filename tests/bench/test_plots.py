"""Pictures of the proving ground."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations
from typing import Any

from sifting.bench.plots import LETTER, ROW, curves, names, pairs, predicted


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


def test_predictions_are_drawn_with_the_names_of_tasks_and_arms() -> None:
    svg = predicted([("digits", "auto", 0.1, 0.2), ("fashion", "memory", 0.2, -0.1)])
    words = words_of(svg)
    for word in (
        "digits",
        "fashion",
        "auto",
        "memory",
        "predicted saving (%)",
        "said yes, saved nothing",
    ):
        assert word in words


def test_no_name_stands_over_another() -> None:
    crowd = [
        (f"task-{n}", arm, 0.1 + n / 500, 0.1 - n / 400) for n in range(5) for arm in ("auto", "x")
    ]
    found = names(crowd, inch=(10.0, 10.0), least=-5.0)
    assert {text for *_, text in found} == {f"task-{n}" for n in range(5)}
    boxes = [(x, y, x + 10 * LETTER * len(text), y + 10 * ROW) for x, y, text in found]
    for (left, low, right, high), other in combinations(boxes, 2):
        assert (
            right <= other[0]
            or other[2] <= left
            or high <= other[1] + 1e-9
            or other[3] <= low + 1e-9
        )
    assert all(x >= -5.0 for x, *_ in found)


def test_points_of_one_task_that_lie_together_have_one_name() -> None:
    near = [("fashion", "auto", 0.2, 0.2), ("fashion", "memory", 0.2, 0.21)]
    apart = [("fashion", "auto", 0.2, 0.2), ("fashion", "memory", 0.2, -0.2)]
    assert len(names(near, inch=(10.0, 10.0))) == 1
    assert len(names(apart, inch=(10.0, 10.0))) == 2


def test_tasks_that_are_left_alone_are_counted_where_they_are_many() -> None:
    still = [(f"task-{n}", "auto", 0.0, -0.01) for n in range(6)]
    (only,) = names(still, inch=(10.0, 10.0))
    assert only[2].startswith("6 tasks")
