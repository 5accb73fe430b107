"""What decides, on runs that are made up so that each reason comes out; and the words beside the table."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sifting.verdict import Verdict, judge
from sifting.verdict.deciding import CLAIMS
from tests.helpers.run_folders import made
from tests.helpers.verdicts import PLAIN, SECONDS, UPDATES, comparison, ending


def shown_ahead(verdict: Verdict) -> set[str]:
    """Arms whose interval in the table lies wholly on the better side."""
    found = set()
    for arm in verdict.arms:
        if arm.role != "arm":
            continue
        ratio, gap = arm.time_ratio, arm.difference
        if ratio is not None and ratio.high is not None and ratio.high < 1:
            found.add(arm.name)
        if gap is not None and gap.low is not None and gap.low > 0:
            found.add(arm.name)
    return found


def test_a_gain_that_random_keep_has_too_is_said_to_be_its_own() -> None:
    """The table has +0.6 points and less time; "no measurable gain" alone would contradict it."""
    gain = ([0.6065, 0.6160, 0.6118], [0.82, 0.80, 0.84])
    also = ([0.6060, 0.6170, 0.6110], [0.83, 0.79, 0.85])
    verdict = comparison(SECONDS, baseline=PLAIN, random_keep=also, sift=gain)
    assert shown_ahead(verdict) == {"sift"}
    assert (verdict.outcome, verdict.decision.reason) == ("no gain", "control")
    assert verdict.overall.startswith("No measurable gain from selection: leave it off. `sift` ")
    assert ", but `random-keep` " in verdict.overall
    assert "compared with it, `sift` " in verdict.overall
    assert "would have seen a gain of " in verdict.overall


def test_a_gain_that_the_correction_takes_says_so_and_how_many_seeds_settle_it() -> None:
    gain = ([0.6165, 0.6280, 0.6190], [0.80, 0.70, 0.86])
    others = {f"other_{i}": PLAIN for i in range(6)}
    verdict = comparison(UPDATES, baseline=PLAIN, random_keep=PLAIN, sift=gain, **others)
    assert (verdict.outcome, verdict.decision.reason) == ("open", "correction")
    assert "`sift`" in verdict.overall
    assert "after Holm's correction" in verdict.overall
    assert verdict.decision.seeds is not None
    assert verdict.decision.seeds > 3
    assert f"{verdict.decision.seeds} seeds would settle it" in verdict.overall


def test_a_better_figure_after_as_many_updates_is_no_gain_in_time_and_says_so() -> None:
    gain = ([0.6165, 0.6260, 0.6218], [1.9, 2.0, 2.1])
    verdict = comparison(UPDATES, baseline=PLAIN, random_keep=PLAIN, sift=gain)
    assert shown_ahead(verdict) == {"sift"}
    assert (verdict.outcome, verdict.decision.reason) == ("no gain", "unequal time")
    assert "give the arms a budget in seconds" in verdict.overall
    assert "`sift` ends +1.6" in verdict.overall
    assert "of its time" in verdict.overall


def test_an_arm_that_the_table_shows_ahead_is_named_though_another_is_the_best() -> None:
    best = ([0.6165, 0.6280, 0.6190], [0.80, 0.70, 0.86])
    second = ([0.6065, 0.6160, 0.6118], [1.9, 2.0, 2.1])
    also = ([0.6160, 0.6285, 0.6192], [0.80, 0.71, 0.85])
    verdict = comparison(UPDATES, baseline=PLAIN, random_keep=also, sift=best, tuned=second)
    assert shown_ahead(verdict) == {"sift", "tuned"}
    assert verdict.outcome == "no gain"
    assert (
        "Ahead of the baseline too, but under a budget that is not one of time" in verdict.overall
    )
    assert "`tuned`" in verdict.overall


def test_a_gap_that_is_the_same_with_every_seed_is_no_measure_of_chance() -> None:
    alike = ([0.625, 0.635, 0.630], [1.0, 1.0, 1.0])
    verdict = comparison(SECONDS, 0.99, baseline=PLAIN, random_keep=PLAIN, sift=alike)
    assert "+2.50 (every seed)" in str(verdict.table())
    assert (verdict.outcome, verdict.decision.reason) == ("no gain", "equal seeds")
    assert "`sift` ends +2.50 points (every seed)" in verdict.overall
    assert "it ends +2.50 points (every seed) from the baseline, too few seeds" in verdict.sentence(
        "sift"
    )


def test_no_gain_says_what_would_have_been_seen() -> None:
    noisy = ([0.598, 0.613, 0.604], [1.02, 0.97, 1.01])
    verdict = comparison(SECONDS, baseline=PLAIN, random_keep=PLAIN, sift=noisy)
    decision = verdict.decision
    assert (decision.outcome, decision.reason, decision.seeds) == ("no gain", "noise", None)
    assert decision.detectable_final is not None
    assert "The comparison would have seen a gain of " in verdict.overall
    assert " points" in verdict.overall
    assert any("four times in five" in note for note in verdict.notes)


def test_what_random_keep_gains_is_not_kept_quiet() -> None:
    quick = ([0.6165, 0.6280, 0.6190], [0.60, 0.62, 0.58])
    verdict = comparison(UPDATES, baseline=PLAIN, random_keep=quick, sift=PLAIN)
    assert verdict.decision.control_ahead
    assert "`random-keep` reached" in verdict.overall
    assert "without any selection" in verdict.overall


def test_an_arm_that_is_sooner_there_but_ends_behind_is_not_called_harm() -> None:
    mixed = ([0.5951, 0.6052, 0.5998], [0.5, 0.52, 0.48])
    runs = ending("baseline", *PLAIN[:1], pace=PLAIN[1], budget=UPDATES)
    runs += ending("random-keep", [0.60, 0.61, 0.604], pace=[0.5, 0.5, 0.51], budget=UPDATES)
    verdict = judge([*runs, *ending("sift", mixed[0], pace=mixed[1], budget=UPDATES)], target=0.5)
    assert shown_ahead(verdict) == {"sift"}
    assert verdict.outcome == "no gain"
    assert verdict.decision.harmed == ()


def test_what_asks_and_leaves_all_as_it_is_does_no_harm_by_asking() -> None:
    """An autopilot that never selects ends as the plain run does, some percent later."""
    for pace, harmed in ((1.03, ()), (1.12, ("auto",))):
        slower = (PLAIN[0], [pace, pace + 0.002, pace - 0.001])
        verdict = comparison(UPDATES, baseline=PLAIN, random_keep=PLAIN, auto=slower)
        ratio = verdict.arm("auto").time_ratio
        assert ratio is not None
        assert ratio.above(1)
        assert verdict.decision.harmed == harmed
        assert verdict.outcome == ("harm" if harmed else "no gain")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.floats(0.7, 1.6),
    st.floats(0.7, 1.6),
    st.sampled_from([0.01, 0.05, 0.1]),
    st.integers(3, 5),
    st.booleans(),
    st.sampled_from([UPDATES, SECONDS]),
)
def test_a_sentence_never_contradicts_its_table(
    first: int,
    one: float,
    two: float,
    noise: float,
    seeds: int,
    control: bool,
    budget: dict[str, Any],
) -> None:
    speeds = {"baseline": 1.0, "sift": one, "tuned": two} | (
        {"random-keep": 1.1} if control else {}
    )
    runs = [
        made(a, first + s, speed=v, noise=noise, points=6, budget=budget)
        for a, v in speeds.items()
        for s in range(seeds)
    ]
    verdict = judge(runs)
    decision = verdict.decision
    ahead = shown_ahead(verdict)
    assert {a.arm for a in decision.ahead} == ahead
    assert not ahead & set(decision.harmed)
    if decision.outcome == "no gain":
        assert all(f"`{arm}`" in verdict.overall for arm in ahead)
        if ahead:
            assert decision.reason != "noise"
    if decision.outcome == "harm":
        assert not ahead
    if decision.outcome in ("pays", "open"):
        best = verdict.arm(decision.best or "")
        assert best.name in ahead
        assert all(e is not None and e.measurable for e in best.pair(decision.claim))
    assert (decision.outcome == "pays") == any(a.obstacle is None for a in decision.ahead)
    assert decision.claim in CLAIMS


def test_every_reason_has_words() -> None:
    with pytest.raises(StopIteration):
        comparison(UPDATES, baseline=PLAIN).arm("nobody")
    assert comparison(UPDATES, sift=PLAIN).decision.reason == "no baseline"
    assert comparison(UPDATES, baseline=PLAIN).decision.reason == "no arms"
    fast = (PLAIN[0], [0.5, 0.52, 0.48])
    alone = comparison(UPDATES, baseline=PLAIN, sift=fast)
    assert (alone.outcome, alone.decision.reason) == ("cannot judge", "no control")
    assert "`sift` reached" in alone.overall
