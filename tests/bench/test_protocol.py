"""What is run for a task."""

from __future__ import annotations

import math

from sifting.bench import protocol
from sifting.training.arms import ARMS


def test_an_arm_that_diverged_at_a_rate_does_not_get_it() -> None:
    found = protocol.best_rates({"a": {0.1: 2.0, 0.3: 1.0}, "b": {}}, lower_is_better=True)
    assert found == {"a": 0.3}


def test_tasks_without_classes_have_no_arm_that_selects_by_entropy() -> None:
    every = protocol.arms_of(classes=True, known=ARMS)
    some = protocol.arms_of(classes=False, known=ARMS)
    assert set(every) - set(some) == set(protocol.BY_ENTROPY)
    assert set(every) <= set(ARMS), "all of them are there"
    assert protocol.BASELINE not in every, "which is always run"


def test_rates_are_a_third_and_three_times_the_presets() -> None:
    assert protocol.rates_of(1e-3) == (0.00033, 0.001, 0.003)


def test_whose_rates_are_tried() -> None:
    arms = ("memory", "baseline-75", "sift")
    assert protocol.tuned_arms(arms, "every") == ("baseline", "random", "memory", "sift")
    assert protocol.tuned_arms(arms, "baseline") == ("baseline",)
    assert protocol.tuned_arms(arms, "none") == ()
    assert protocol.with_baseline({"memory": 0.3}, arms) == {"memory": 0.3}


def test_a_best_learning_rate_at_the_end_is_gone_on_from() -> None:
    found = {
        "low": {0.1: 0.9, 0.3: 0.8, 0.9: 0.7},
        "high": {0.1: 0.7, 0.3: 0.8, 0.9: 0.9},
        "inside": {0.1: 0.7, 0.3: 0.9, 0.9: 0.8},
        "diverged": {0.1: 0.7, 0.3: 0.8, 0.9: math.nan},
        "everywhere": {0.1: math.nan},
    }
    beyond = protocol.rates_beyond(found, lower_is_better=False)
    assert beyond == {0.033: ("low",), 2.7: ("high",)}
    assert protocol.rates_beyond({"low": found["low"]}, lower_is_better=True) == {2.7: ("low",)}


def test_no_arm_is_tried_at_more_than_five_learning_rates() -> None:
    rising = {0.1 * 3**k: float(k) for k in range(5)}
    assert protocol.rates_beyond({"memory": rising}, lower_is_better=False) == {}
    assert protocol.best_rates({"memory": rising}, lower_is_better=False)["memory"] == 0.1 * 3**4
