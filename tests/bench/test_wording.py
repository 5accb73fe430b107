"""The metrics of a task as a page says them."""

from __future__ import annotations

from typing import Any

import pytest

from sifting.bench.wording import (
    ARM_COLUMNS,
    COLUMNS,
    NONE,
    arm_rows,
    best_of,
    cut_short,
    gap,
    metric_shown,
    quality_rows,
    row,
    time_cell,
    worst_harm,
    worth_cell,
)


def known(value: float, low: float, high: float) -> dict[str, Any]:
    return {"value": value, "low": low, "high": high, "p": 0.01, "n": 5}


def arm(**more: Any) -> dict[str, Any]:
    given = {"role": "arm", "runs": 3, "finished": 3, "reached": 3, "mean": 0.8}
    return {**given, "difference": None, "time_ratio": None, "cost": None, **more}


RESULT: dict[str, Any] = {
    "percent": True,
    "lower_is_better": False,
    "arms": {
        "baseline": arm(role="baseline", mean=0.9),
        "auto": arm(time_ratio=known(0.7, 0.6, 0.8), difference=known(0.01, 0.0, 0.02)),
        "memory": arm(reached=1, difference=known(-0.05, -0.06, -0.04), cost=known(1.1, 1.0, 1.2)),
        "sift": arm(reached=0, difference=known(-0.2, -0.3, -0.1)),
    },
    "finals": {
        "baseline": {"0": 0.9},
        "memory": {"0": 0.84, "1": 0.86},
        "baseline-75": {"0": 0.88},
    },
    "rates": {"baseline": 0.003},
    "worth": {"memory": {**known(1.3, 1.2, 1.4), "at_the_end": 2}},
    "plan": {
        name: {"updates": 1200, "made": 950.2 if name == "auto" else None}
        for name in ("baseline", "auto", "memory", "sift", "baseline-75")
    },
    "quality": {"memory": {"recall": [0.5, None, 0.75, 1.0], "other": [1.0]}, "sift": {}},
}


def test_a_task_is_one_line_of_the_table_of_all() -> None:
    found = dict(zip(COLUMNS, row("mine", RESULT), strict=True))
    assert found["task"] == "[mine](bench/mine.md)"
    assert found["baseline ends at"] == "90 %"
    assert found["autopilot"] == "0.70 (0.60–0.80)"
    assert found["best fixed arm"] == "`memory` reached by 1 of 3"
    assert found["worst harm"] == "`sift` −20.00 points (−30.00 to −10.00)"
    assert found["seeds"] == "3"


def test_the_best_got_there_soonest_or_is_least_behind() -> None:
    assert best_of(RESULT, ("memory", "sift")) == "memory"
    assert best_of(RESULT, ("sift", "auto", "memory")) == "auto"
    assert best_of(RESULT, ("percentile",)) is None


def test_where_nothing_is_behind_there_is_no_harm() -> None:
    lower = {**RESULT, "lower_is_better": True, "arms": {"sift": RESULT["arms"]["sift"]}}
    assert worst_harm(lower) == "none measurable"


def test_every_arm_has_its_line_also_one_that_was_not_judged() -> None:
    lines = {line[0]: dict(zip(ARM_COLUMNS, line, strict=True)) for line in arm_rows(RESULT)}
    assert lines["`memory`"]["ends at"] == "85 %"
    assert lines["`memory`"]["time in all ÷ baseline"] == "1.10"
    assert (lines["`auto`"]["updates"], lines["`memory`"]["updates"]) == ("950", "1,200")
    assert lines["`memory`"]["learning rate"] == "0.003", "the baseline's serves it"
    assert lines["`baseline-75`"]["to the baseline"] == NONE
    assert lines["`memory`"]["÷ a baseline that ends as well"].endswith(
        "2 of 5 at the end of the scale"
    )
    assert worth_cell(RESULT, "auto") == NONE


def test_quality_is_shown_in_four_parts_of_the_run() -> None:
    assert quality_rows(RESULT) == [["`memory`", "recall", "0.50", NONE, "0.75", "1.00"]]


@pytest.mark.parametrize(
    ("result", "value", "shown"),
    [({"percent": True}, 0.5, "50 %"), ({"percent": False}, 1.23456, "1.235"), ({}, None, NONE)],
)
def test_values_of_the_metric(result: dict[str, Any], value: float | None, shown: str) -> None:
    assert metric_shown(result, value) == shown


def test_what_is_not_known_is_a_dash() -> None:
    assert gap(RESULT, None) == time_cell(RESULT, "percentile") == NONE
    assert gap({"percent": False}, {"value": -0.5, "low": None, "high": None}) == "−0.5000"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            known(-0.03, -0.04, -0.02),
            "ending sooner without selection makes the result measurably worse.",
        ),
        (
            known(-0.01, -0.04, 0.02),
            "ending sooner without selection costs nothing measurable here",
        ),
    ],
)
def test_a_baseline_cut_short_is_said_beside_a_saving(change: dict[str, Any], said: str) -> None:
    assert cut_short(RESULT) == ""
    cut = arm(difference=change, reached=1, runs=3)
    found = cut_short({**RESULT, "lengths": {"baseline-75": cut, "baseline-133": arm()}})
    assert found.startswith("`baseline-75`, the baseline cut short, got there with 1 of 3 seeds")
    assert said in found
    soon = {**cut, "time_ratio": known(0.8, 0.7, 0.9)}
    found = cut_short({**RESULT, "lengths": {"baseline-75": soon}})
    assert "got to where it ends in 0.80 (0.70–0.90) of its time" in found
