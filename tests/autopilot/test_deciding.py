"""The rules, one by one: what is taken up, what is kept, what is dropped, and the words for it."""

from __future__ import annotations

from dataclasses import replace

from sifting.autopilot.deciding import AGREES, AS_WELL, ENTER, EPSILON, GAIN, LEAVE, decide
from sifting.autopilot.options import PLAIN, Judged, Option

INPUT = Option("input", 2)
GOOD = Judged(INPUT, share=0.8, error=0.02, speedup=1.3)
MEMORY = Judged(Option("memory", 2), kept_loss=0.95, agreement=1.2, learnable=True)


def test_an_option_is_taken_up_at_one_mark_and_dropped_at_a_lower_one() -> None:
    between = replace(GOOD, share=(ENTER + LEAVE) / 2)
    assert decide([between], PLAIN, held_out=True)[0] == PLAIN
    assert decide([between], INPUT, held_out=True)[0] == INPUT
    assert decide([replace(between, share=LEAVE - 0.01)], INPUT, held_out=True)[0] == PLAIN
    uncertain = replace(GOOD, share=ENTER + 0.05, error=0.1)
    assert decide([uncertain], PLAIN, held_out=True)[0] == PLAIN


def test_what_costs_more_than_it_gains_is_not_taken() -> None:
    dear = replace(GOOD, speedup=0.97)
    assert decide([dear], PLAIN, held_out=True)[0] == PLAIN
    option, why = decide([dear], INPUT, held_out=True)
    assert option == PLAIN
    assert "would be worth 0.97 plain ones" in why


def test_what_hardly_gains_is_kept_but_not_taken_up() -> None:
    little = replace(GOOD, speedup=(1 + GAIN) / 2)
    assert decide([little], PLAIN, held_out=True)[0] == PLAIN
    assert decide([little], INPUT, held_out=True)[0] == INPUT
    assert decide([replace(GOOD, speedup=GAIN)], PLAIN, held_out=True)[0] == INPUT


def test_what_is_forgotten_or_vetoed_is_dropped_and_the_reason_said() -> None:
    option, why = decide([replace(GOOD, forgets=True)], INPUT, held_out=True)
    assert (option, "gets worse" in why) == (PLAIN, True)
    option, why = decide([replace(GOOD, vetoed=True)], PLAIN, held_out=True)
    assert (option, "a trial found harm in 1 in 2 by input" in why) == (PLAIN, True)


def test_a_share_on_new_samples_that_is_too_uncertain_is_not_gone_by() -> None:
    wide = replace(
        GOOD, share=0.82, error=0.14
    )  # less one error it is above the mark, less two not
    option, why = decide([wide], PLAIN, held_out=False)
    assert (option, "82% (± 14%)" in why, "too uncertain" in why) == (PLAIN, True, True)
    assert decide([replace(wide, error=0.12)], PLAIN, held_out=False)[0] == INPUT
    assert decide([wide], PLAIN, held_out=True)[0] == INPUT  # the same samples at each look
    assert decide([wide], INPUT, held_out=False)[0] == INPUT  # what is in use has its own mark


def test_held_out_samples_go_before_losses() -> None:
    assert decide([GOOD, MEMORY], PLAIN, held_out=True)[0] == INPUT
    poor = replace(GOOD, share=0.5, speedup=1.0)
    assert decide([poor, MEMORY], PLAIN, held_out=True)[0] == MEMORY.option
    # the loss sits where nothing is learned: labels that are wrong, for one
    assert decide([poor, replace(MEMORY, learnable=False)], PLAIN, held_out=True)[0] == PLAIN
    assert decide([poor, replace(MEMORY, learnable=None)], PLAIN, held_out=True)[0] == PLAIN


def test_without_held_out_samples_kept_loss_decides_and_agreement_vetoes() -> None:
    assert decide([MEMORY], PLAIN, held_out=False)[0] == MEMORY.option
    low = replace(MEMORY, kept_loss=1 - EPSILON - 0.01)
    assert decide([low], PLAIN, held_out=False)[0] == PLAIN
    assert decide([low], MEMORY.option, held_out=False)[0] == MEMORY.option  # not yet
    option, why = decide([replace(MEMORY, agreement=AGREES - 0.01)], PLAIN, held_out=False)
    assert (option, "does not agree" in why) == (PLAIN, True)


def test_of_several_ratios_the_highest_that_keeps_the_loss_is_taken() -> None:
    four = replace(MEMORY, option=Option("memory", 4), kept_loss=0.93)
    eight = replace(MEMORY, option=Option("memory", 8), kept_loss=0.7)
    assert decide([MEMORY, four, eight], PLAIN, held_out=False)[0] == four.option


def test_a_change_has_to_be_worth_it() -> None:
    other = replace(GOOD, option=Option("tuned", 2), speedup=1.32)
    assert decide([GOOD, other], INPUT, held_out=True)[0] == INPUT
    assert decide([GOOD, replace(other, speedup=1.5)], INPUT, held_out=True)[0] == other.option


def test_reasons_for_leaving_it_off() -> None:
    assert decide([], PLAIN, held_out=True)[1] == "no scorer fits the model and its batches"
    assert decide([Judged(INPUT)], PLAIN, held_out=False)[1] == "too little is known yet"
    poor = replace(GOOD, share=0.5, speedup=1.0)
    assert "only 50% (± 2%) of the progress" in decide([poor], PLAIN, held_out=True)[1]


def test_reasons_have_no_numbers_that_say_nothing() -> None:
    noise = replace(GOOD, share=-0.38, error=1.13, speedup=0.5)
    assert "too small beside its noise" in decide([noise], PLAIN, held_out=True)[1]
    none = replace(GOOD, share=0.0, error=0.0, speedup=0.0)
    assert decide([none], PLAIN, held_out=True)[1] == (
        "no progress on held-out samples is told from noise"
    )
    assert "100% (± 8%)" in decide([replace(GOOD, share=1.03, error=0.08)], PLAIN, held_out=True)[1]
    # a share that was not the reason is not said to be it
    poor = replace(GOOD, share=0.55, speedup=1.02)
    by_loss = replace(BY_LOSS, learnable=False)
    assert "55% (± 2%)" in decide([poor, by_loss], PLAIN, held_out=True)[1]


BY_LOSS = Judged(
    Option("predicted", 2), share=0.95, error=0.02, speedup=1.45, agreement=1.05, learnable=True
)


def test_the_reason_is_why_it_was_refused() -> None:
    """A predictor that nothing speaks for was said to be refused for its gradient."""
    unlearned = Judged(Option("predicted", 2), kept_loss=0.97, agreement=1.1, learnable=False)
    known = Judged(Option("input", 2), kept_loss=0.7, agreement=1.1)
    said = decide([unlearned, known], PLAIN, held_out=False)[1]
    assert said == "the kept would carry 70% of the loss (1 in 2 by input)"
    said = decide([unlearned], PLAIN, held_out=False)[1]
    assert said.endswith("but held-out samples do not say that high losses are learned")
    good = replace(known, kept_loss=0.97)
    assert decide([good], PLAIN, held_out=True)[1].endswith("have yet to tell")
    assert "does not agree" in decide([replace(good, agreement=0.5)], PLAIN, held_out=False)[1]
    assert "too little" in decide([replace(good, cost=0.9)], PLAIN, held_out=False)[1]


def test_what_goes_by_predicted_losses_has_to_agree_as_well_as_what_looks_at_samples() -> None:
    """On wrong labels, high losses point elsewhere than what the samples look like."""
    looks = replace(GOOD, agreement=1.1)
    assert decide([looks, BY_LOSS], PLAIN, held_out=True)[0] == BY_LOSS.option
    after_wrong_labels = replace(BY_LOSS, agreement=AS_WELL * 1.1 - 0.01)
    assert after_wrong_labels.agreement is not None
    assert after_wrong_labels.agreement > AGREES
    assert decide([looks, after_wrong_labels], PLAIN, held_out=True)[0] == INPUT
    for change in ({"agreement": None}, {"agreement": AGREES - 0.01}, {"learnable": False}):
        assert decide([looks, replace(BY_LOSS, **change)], PLAIN, held_out=True)[0] == INPUT
    # in use, it stays: its agreement is as it was when nothing was selected yet
    assert decide([looks, after_wrong_labels], BY_LOSS.option, held_out=True)[0] == BY_LOSS.option
    unlearnable = replace(BY_LOSS, learnable=False)
    assert decide([looks, unlearnable], BY_LOSS.option, held_out=True)[0] == INPUT


def test_scorers_do_not_take_turns() -> None:
    little_better = replace(BY_LOSS, speedup=1.05 * (GOOD.speedup or 0))
    assert decide([GOOD, little_better], INPUT, held_out=True)[0] == INPUT
    assert decide([GOOD, little_better], BY_LOSS.option, held_out=True)[0] == BY_LOSS.option
    much_better = replace(BY_LOSS, speedup=1.1 * (GOOD.speedup or 0))
    assert decide([GOOD, much_better], INPUT, held_out=True)[0] == BY_LOSS.option
