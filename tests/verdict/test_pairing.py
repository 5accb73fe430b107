"""The metrics of each arm, paired by seed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sifting.verdict.curves import curve_of
from sifting.verdict.intervals import Estimate
from sifting.verdict.pairing import (
    ArmVerdict,
    Curves,
    Spent,
    corrected,
    finished,
    measure,
    p_better,
)
from tests.helpers.run_folders import made


def curves(arm: str, *, seeds: int = 3, status: str = "finished", **options: Any) -> Curves:
    return {
        seed: curve_of(made(arm, seed, points=10, status=status, **options))
        for seed in range(seeds)
    }


def measured(arm: Curves, baseline: Curves, control: Curves, **options: Any) -> ArmVerdict:
    given = {"target": 0.5, "axis": "seconds", **options}
    return measure("sift", "arm", arm, baseline=baseline, control=control, **given)


def test_ratios_are_of_the_time_to_the_target_and_differences_of_the_ends() -> None:
    base = curves("baseline")
    arm = measured(curves("sift", speed=2.0), base, base)
    assert (arm.runs, arm.finished, arm.failed, arm.reached) == (3, 3, 0, 3)
    assert arm.time_ratio is not None
    assert arm.time_ratio.value == pytest.approx(0.5, rel=0.05)
    assert arm.over_control is not None
    assert arm.over_control.value == pytest.approx(arm.time_ratio.value)
    assert arm.cost is not None
    assert arm.cost.value == 1.0
    assert arm.difference is not None
    gaps = [arm.final[seed] - base[seed].values[-1] for seed in range(3)]
    assert arm.difference.value == pytest.approx(sum(gaps) / 3)


def test_only_seeds_that_both_have_are_paired() -> None:
    arm = measured(curves("sift", seeds=5), curves("baseline", seeds=3), {})
    assert arm.difference is not None
    assert (arm.runs, arm.difference.n) == (5, 3)
    assert arm.control_difference is None
    assert not measured(curves("sift"), curves("baseline", seeds=2), {}).judged


def test_where_a_run_failed_there_is_no_ratio() -> None:
    some = {**curves("sift", seeds=2), 2: curve_of(made("sift", 2, status="failed"))}
    arm = measured(some, curves("baseline"), {})
    assert (arm.finished, arm.failed, arm.time_ratio) == (2, 1, None)
    assert measured(curves("sift"), some, {}).time_ratio is None, "nor where the baseline's did"


def test_a_control_that_never_got_there_counts_with_all_its_time() -> None:
    base, slow = curves("baseline"), curves("random-keep", ceiling=0.4)
    arm = measured(curves("sift"), base, slow)
    assert arm.over_control is not None
    whole = slow[0].axis("seconds")[-1]
    assert arm.over_control.value == pytest.approx(arm.time / whole)
    assert Spent(None, None, 7.0).bound == 7.0
    assert Spent(3.0, None, 7.0).bound == 3.0


def test_a_target_passed_by_the_first_evaluation_gives_no_ratio() -> None:
    base = curves("baseline")
    assert measured(curves("sift"), base, base, target=0.05).time_ratio is None


def test_finished_runs_are_those_that_were_evaluated() -> None:
    some = {0: curve_of(made("a", 0)), 1: curve_of(made("a", 1, status="running"))}
    assert list(finished(some)) == [0]


def claimed(name: str, p: float, **more: Any) -> ArmVerdict:
    ahead = Estimate(0.8, 0.7, 0.9, p, 5)
    arm = ArmVerdict(name, "arm", 5, 5, 0, {}, time_ratio=ahead, over_control=ahead)
    return replace(arm, **more)


def test_p_values_are_those_of_the_harder_claim_and_corrected_for_all() -> None:
    weak = Estimate(0.9, 0.8, 0.99, 0.04, 5)
    arms = [claimed("one", 0.01), claimed("two", 0.001, over_control=weak), claimed("three", 0.5)]
    one, two, three = corrected(arms, lower_is_better=False, equal_time=False)
    assert one.p == pytest.approx(3 * 0.01)
    assert two.p == pytest.approx(2 * 0.04), "the larger of the two"
    assert two.p_baseline == pytest.approx(3 * 0.001)
    assert three.p == pytest.approx(0.5)


def test_with_equal_time_the_final_metric_is_a_claim_too() -> None:
    gap = Estimate(0.02, 0.01, 0.03, 0.002, 5)
    arm = claimed("one", 0.2, difference=gap, control_difference=gap)
    (found,) = corrected([arm], lower_is_better=False, equal_time=True)
    assert (found.claim, found.p) == ("final", pytest.approx(2 * 0.002))
    (found,) = corrected([arm], lower_is_better=False, equal_time=False)
    assert (found.claim, found.p) == ("time", pytest.approx(0.2))
    (found,) = corrected([replace(arm, failed=1)], lower_is_better=False, equal_time=True)
    assert found.claim == "time", "of runs that failed, no end is claimed"


def test_what_points_the_other_way_is_no_evidence() -> None:
    slower = Estimate(1.2, 1.1, 1.3, 0.001, 5)
    assert p_better(slower, null=1.0, lower=True) == 1.0
    assert p_better(slower, null=1.0, lower=False) == 0.001
    assert p_better(None, null=1.0, lower=True) == 1.0
