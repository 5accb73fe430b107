"""What to do, and why: one sentence for every reason that can decide."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from sifting.verdict import Verdict, judge
from sifting.verdict.advice import OBSTACLES, overall
from sifting.verdict.deciding import Obstacle
from tests.helpers.verdicts import PLAIN, SECONDS, UPDATES, comparison, ending

QUICK = (PLAIN[0], [0.5, 0.52, 0.48])
BETTER = ([0.6165, 0.6260, 0.6218], [1.9, 2.0, 2.1])  # for twice the time


def said(verdict: Verdict) -> tuple[str, str]:
    found = overall(verdict)
    return found.strong(), found.plain()


FIVE = ([0.600, 0.610, 0.605, 0.602, 0.607], [1.0, 1.01, 0.99, 1.0, 1.0])
NOISE = (0.001, -0.002, 0.0, 0.002, -0.001)


def test_a_gain_in_time_stands_beside_its_control() -> None:
    quick = (FIVE[0], [0.5, 0.51, 0.49, 0.5, 0.5])
    verdict = comparison(UPDATES, 0.5, baseline=FIVE, random_keep=FIVE, sift=quick)
    strong, plain = said(verdict)
    assert strong == "Selection pays 50 %"
    assert "`sift` reached 50 % in 0.50" in plain
    assert "; `random-keep` did the same in 1.00" in plain


def test_a_better_end_in_the_same_time_is_worth_its_points() -> None:
    better = ([v + 0.05 + e for v, e in zip(FIVE[0], NOISE, strict=True)], FIVE[1])
    verdict = comparison(SECONDS, 0.99, baseline=FIVE, random_keep=FIVE, sift=better)
    strong, plain = said(verdict)
    assert strong.startswith("Selection is worth +5.00 points (+4.")
    assert "from the baseline in the same time" in plain
    assert "`random-keep` ends +0.00 points" in plain


def test_a_gain_in_time_that_ends_behind_says_so() -> None:
    behind = [v - 0.02 + e for v, e in zip(FIVE[0], NOISE, strict=True)]
    quick = (behind, [0.5, 0.51, 0.49, 0.5, 0.5])
    verdict = comparison(UPDATES, 0.5, baseline=FIVE, random_keep=FIVE, sift=quick)
    assert ". But it ends −2.00 points (−2." in said(verdict)[1]


@pytest.mark.parametrize(
    ("arms", "budget", "strong", "words"),
    [
        ({"sift": PLAIN}, UPDATES, "Cannot be judged: there is no baseline.", "Run one under"),
        ({"baseline": PLAIN}, UPDATES, "Cannot be judged: there is no arm that selects", ""),
        (
            {"baseline": PLAIN, "sift": tuple(v[:2] for v in PLAIN)},
            UPDATES,
            "Cannot be judged yet: no arm has 3 finished seeds",
            "",
        ),
        (
            {"baseline": PLAIN, "sift": QUICK},
            UPDATES,
            "Cannot be judged yet.",
            "there is no random-keep to compare with: run it before giving the credit to selection",
        ),
        (
            {"baseline": PLAIN, "random_keep": QUICK, "sift": QUICK},
            UPDATES,
            "No measurable gain from selection: leave it off.",
            "compared with it, `sift` took 1.00",
        ),
        (
            {"baseline": PLAIN, "random_keep": PLAIN, "sift": PLAIN},
            UPDATES,
            "No measurable gain: leave it off.",
            "",
        ),
        (
            {"baseline": PLAIN, "random_keep": PLAIN, "sift": BETTER},
            UPDATES,
            "No gain in time is shown: leave it off, or give the arms a budget in seconds.",
            "`sift` ends +1.6",
        ),
        (
            {"baseline": PLAIN, "random_keep": PLAIN, "sift": ([0.5, 0.512, 0.505], PLAIN[1])},
            SECONDS,
            "Selection does harm here: leave it off.",
            "behind the baseline",
        ),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_every_outcome_says_what_to_do(arms, budget, strong, words) -> None:
    found = said(comparison(budget, **arms))
    assert found[0].startswith(strong)
    assert words in found[1]


def test_arms_that_harm_and_arms_that_look_ahead_are_named_beside_the_best() -> None:
    bad = ([0.5, 0.512, 0.505], PLAIN[1])
    verdict = comparison(
        UPDATES, baseline=PLAIN, random_keep=PLAIN, sift=PLAIN, worse=bad, ahead=BETTER
    )
    plain = said(verdict)[1]
    assert "Measurably worse than the baseline: `worse`." in plain
    every = comparison(UPDATES, baseline=PLAIN, random_keep=PLAIN, one=bad, two=bad)
    assert "Every arm is measurably worse than the baseline" in said(every)[1]


def test_runs_that_failed_are_no_gain() -> None:
    runs = [
        run
        for arm, (finals, pace) in {"baseline": PLAIN, "random-keep": PLAIN}.items()
        for run in ending(arm, finals, pace=pace, budget=SECONDS)
    ]
    good = ending("sift", [*BETTER[0], 0.63], pace=[1.0] * 4, budget=SECONDS)
    good[3] = replace(good[3], status="failed")
    verdict = judge([*runs, *good])
    assert verdict.decision.reason == "failed runs"
    assert said(verdict)[1].endswith("but 1 of its 4 runs failed.")


def test_a_gain_that_no_number_of_seeds_would_show_says_so() -> None:
    ahead = (
        [v + e for v, e in zip(FIVE[0], [0.010, 0.012, 0.009, 0.011, 0.010], strict=True)],
        FIVE[1],
    )
    hardly = [0.0001, -0.0040, 0.0041, -0.0035, 0.0037]  # over random-keep, 0.00008 in the mean
    best = ([v + e for v, e in zip(ahead[0], hardly, strict=True)], FIVE[1])
    verdict = comparison(SECONDS, 0.99, baseline=FIVE, random_keep=ahead, sift=best)
    assert verdict.decision.reason == "control"
    assert verdict.decision.too_many_seeds
    assert "compared with it, `sift` ends +0.01 points" in said(verdict)[1]
    assert said(verdict)[1].endswith("even 100 seeds would not show it.")


def test_random_keep_that_is_ahead_of_the_arm_leaves_no_seeds_to_ask_for() -> None:
    arm = (
        [v + e for v, e in zip(FIVE[0], [0.010, 0.012, 0.009, 0.011, 0.010], strict=True)],
        FIVE[1],
    )
    better = ([v + 0.01 for v in arm[0]], FIVE[1])
    verdict = comparison(SECONDS, 0.99, baseline=FIVE, random_keep=better, sift=arm)
    assert verdict.decision.reason == "control"
    assert (verdict.decision.seeds, verdict.decision.too_many_seeds) == (None, False)
    assert "seeds would" not in said(verdict)[1]


def test_every_obstacle_has_words() -> None:
    assert set(OBSTACLES) == set(get_args(Obstacle))
