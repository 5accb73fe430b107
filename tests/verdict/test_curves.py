from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sifting.verdict.curves import Curve, CurveError, comparable, curve_of, is_baseline, is_control
from tests.helpers.run_folders import made


def curve(figures: list[float], *, lower: bool = False) -> Curve:
    steps = np.arange(1.0, len(figures) + 1)
    figs = np.array(figures)
    return Curve("a", 0, "finished", "r", steps, 32 * steps, 2 * steps, None, figs, lower)


def test_a_curve_is_what_the_log_says() -> None:
    run = made("sift", 3, points=4, scoring=0.2, reference=True)
    found = curve_of(run)
    evals = [m for m in run.metrics if m["kind"] == "eval"]
    assert found.steps.tolist() == [m["step"] for m in evals]
    assert found.samples.tolist() == [m["samples_trained"] for m in evals]
    assert found.values.tolist() == [m["accuracy"] for m in evals]
    clocks = evals[-1]["seconds"]
    assert found.seconds[-1] == pytest.approx(sum(clocks.values()) - clocks["evaluation"])
    assert found.reference == pytest.approx(0.9 * found.seconds)
    assert (found.arm, found.seed) == ("sift", 3)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12), st.floats(0, 1))
def test_a_target_is_reached_between_the_two_evaluations_around_it(
    figures: list[float], target: float
) -> None:
    found = curve(figures).reach(target, "seconds")
    if max(figures) < target:
        assert found is None
        return
    first = next(i for i, f in enumerate(figures) if f >= target)
    assert found is not None
    assert 2 * max(first, 1) <= found <= 2 * (first + 1)
    mirrored = curve([-f for f in figures], lower=True).reach(-target, "seconds")
    assert mirrored == pytest.approx(found)


def test_an_axis_that_a_run_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match="r has no reference"):
        curve([0.5]).reach(0.1, "reference")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seconds": None}, "AttributeError"),
        ({"seconds": {"forward": "soon"}}, "ValueError"),
        ({"seconds": {"forward": float("nan")}}, "not finite"),
        ({"step": -1}, "go backwards"),
        ({"samples_trained": [1]}, "TypeError"),
    ],
)
def test_a_damaged_log_is_named(change: dict[str, object], message: str) -> None:
    run = made("sift", 0, points=3)
    log = [*run.metrics[:-1], {**run.metrics[-1], **change}]
    with pytest.raises(CurveError, match=f"sift-seed0 is damaged.*{message}"):
        curve_of(replace(run, metrics=log))


def test_a_figure_that_is_missing_or_not_a_number_is_passed_over() -> None:
    run = made("sift", 0, points=3)
    for value in (None, "high", float("nan"), True):
        log = [*run.metrics[:-1], {**run.metrics[-1], "accuracy": value}]
        assert len(curve_of(replace(run, metrics=log))) == 2


def test_groups_and_roles() -> None:
    runs = [made("baseline", 0), made("sift", 0), made("random-keep", 0, points=10)]
    groups = comparable(runs)
    assert [key[2] for key in groups] == ["1000 updates", "500 updates"]
    assert [is_baseline(run) for run in runs] == [True, False, False]
    assert [is_control(run) for run in runs] == [False, False, True]
    assert is_baseline(made("plain", 0, selector=None))
    assert is_control(made("half", 0, selector={"policy": "random"}))
