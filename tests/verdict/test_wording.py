"""A sentence for each arm, and notes."""

from __future__ import annotations

from dataclasses import replace

from sifting.verdict import judge
from sifting.verdict.wording import notes, reached, seen, sentence
from tests.helpers.verdicts import PLAIN, SECONDS, UPDATES, comparison, ending

FAST = ([0.650, 0.662, 0.654], [0.5, 0.52, 0.48])


def test_a_baseline_says_where_it_ended_and_an_arm_how_it_compares() -> None:
    verdict = comparison(UPDATES, 0.5, baseline=PLAIN, random_keep=PLAIN, sift=FAST)
    said = {arm.name: sentence(verdict, arm).plain() for arm in verdict.arms}
    assert said["baseline"].startswith(
        "`baseline`: 60.5 % at the budget over 3 seeds, standard deviation 0.50 points; "
    )
    assert said["sift"].startswith("`sift` reached 50 % in 0.4")
    assert "of the baseline's time and 0." in said["sift"]
    assert "; at the budget it is ahead of the baseline, +5.03 points" in said["sift"]
    assert "no measurable difference to the baseline" in said["random-keep"]


def test_a_gap_that_is_the_same_with_every_seed_is_not_called_no_difference() -> None:
    same = ([v + 0.05 for v in PLAIN[0]], PLAIN[1])
    verdict = comparison(UPDATES, 0.5, baseline=PLAIN, random_keep=PLAIN, sift=same)
    said = sentence(verdict, verdict.arm("sift")).plain()
    assert "it ends +5.00 points (every seed) from the baseline, too few seeds to rule out" in said
    assert "no measurable difference" not in said


def test_what_cannot_be_judged_says_why() -> None:
    two = tuple(values[:2] for values in PLAIN)
    verdict = comparison(UPDATES, baseline=PLAIN, sift=two)
    assert sentence(verdict, verdict.arm("sift")).plain() == (
        "`sift` cannot be judged: it has 2 seeds in common with the baseline, and 3 are needed."
    )
    runs = ending("baseline", *PLAIN[:1], pace=PLAIN[1], budget=UPDATES)
    broken = ending("sift", *PLAIN[:1], pace=PLAIN[1], budget=UPDATES)
    broken = [replace(run, status="failed") for run in broken]
    verdict = judge([*runs, *broken])
    said = sentence(verdict, verdict.arm("sift")).plain()
    assert said == "`sift` cannot be judged: 0 of 3 runs finished, 3 failed."


def test_how_a_target_was_reached() -> None:
    some = ([0.4, 0.62, 0.3], [1.0, 1.0, 1.0])
    never = ([0.4, 0.41, 0.3], [1.0, 1.0, 1.0])
    verdict = comparison(UPDATES, 0.55, baseline=PLAIN, some=some, never=never)
    assert reached(verdict, verdict.arm("some")).plain() == "reached 55 % with 1 of 3 seeds"
    assert reached(verdict, verdict.arm("never")).plain() == (
        "did not reach 55 % with any of its 3 seeds"
    )
    assert reached(verdict, verdict.arm("baseline")).plain() == (
        "reached 55 % with all of its 3 seeds"
    )


def test_what_would_have_been_seen_is_said_in_the_respects_that_count() -> None:
    noisy = ([0.598, 0.613, 0.604], [1.02, 0.97, 1.01])
    verdict = comparison(SECONDS, 0.5, baseline=PLAIN, random_keep=PLAIN, sift=noisy)
    said = seen(verdict).plain()
    assert said.startswith(" The comparison would have seen a gain of ")
    assert said.endswith(" points.")
    assert seen(verdict, over="random-keep").plain().endswith(" over `random-keep`.")
    unknown = replace(verdict.decision, detectable_time=None, detectable_final=None)
    assert not seen(replace(verdict, decision=unknown))


def test_notes_say_what_time_is_and_what_is_missing() -> None:
    alone = comparison(UPDATES, 0.1, baseline=PLAIN, sift=PLAIN)
    said = " ".join(note.plain() for note in notes(alone))
    assert "Time is measured training time" in said
    assert "There is no random-keep arm" in said
    assert "6 runs had passed the target by the first evaluation" in said
    assert "reference time" in notes(replace(alone, axis="reference"))[0].plain()
    runs = ending("baseline", *PLAIN[:1], pace=PLAIN[1], budget=UPDATES)
    cut = judge([*runs[:2], replace(runs[2], status="running")])
    assert any("`baseline` (2 of 3)" in note.plain() for note in notes(cut))
