"""What is run for a task."""

from __future__ import annotations

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
