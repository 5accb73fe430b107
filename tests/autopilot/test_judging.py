"""What is known of an option."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sifting.autopilot.judging import LEARNABLE, Knowledge
from sifting.autopilot.looks import FORWARD
from sifting.autopilot.noted import Noted
from sifting.autopilot.options import LADDER, Judged, Option
from sifting.exits.auto import MEMORY, PREDICTED
from sifting.measure.learning import Progress, speedup

HALF = Option("input", LADDER[0])


def knowledge(
    *,
    held: Progress | None = None,
    memory: Progress | None = None,
    new: Progress | None = None,
    tells: bool = True,
) -> Knowledge:
    """As measured: progress on held-out samples by two scorers, or on new samples."""
    progress = {HALF: held, **{Option(by, LADDER[0]): memory for by in (MEMORY, PREDICTED)}}
    known: Any = SimpleNamespace(
        evidence=SimpleNamespace(kept_loss=lambda o: 0.7, agreement=lambda o: 1.1),
        arrivals=SimpleNamespace(recent=lambda step: new),
        held_out=SimpleNamespace(
            looks=held is not None or memory is not None,
            recent=progress.get,
            tells=tells,
            progress=Noted({option: [found] for option, found in progress.items() if found}),
        ),
        exit=SimpleNamespace(looks="input", costs={"input": 0.1, MEMORY: 0.0}),
    )
    return Knowledge(known.evidence, known.arrivals, known.held_out, known.exit)


def judged(known: Knowledge, option: Option = HALF, **more: Any) -> Judged:
    given = {"step": 100, "timed": 0.0, "explore": 0.25, "using": False, "vetoed": False, **more}
    return known.judged(option, **given)


def made(share: float, error: float = 0.01) -> Progress:
    return Progress(share, 1 - share, error**2, error**2)


def test_the_share_of_held_out_progress_makes_the_speed_up() -> None:
    found = judged(knowledge(held=made(0.8)))
    cost = 2 * 0.1 * FORWARD
    assert found.cost == pytest.approx(cost)
    assert found.share == pytest.approx(0.8)
    assert found.speedup == pytest.approx(speedup(0.8, ratio=2, explore=0.25) / (1 + cost))
    assert (found.kept_loss, found.agreement) == (0.7, 1.1)


def test_without_held_out_samples_new_ones_count() -> None:
    assert judged(knowledge(new=made(0.7))).share == pytest.approx(0.7)
    assert judged(knowledge()).share is None


def test_progress_counts_for_nothing_where_no_classes_are_predicted() -> None:
    for known in (knowledge(held=made(0.8), tells=False), knowledge(new=made(0.8), tells=False)):
        found = judged(known)
        assert (found.share, found.speedup, found.sure) == (None, None, None)
        assert found.kept_loss == 0.7, "which decides"
        assert known.summary("input", 100)["learning_share"] is None
    assert judged(knowledge(memory=made(0.8), tells=False), Option(MEMORY, 2)).learnable


def test_clocks_count_where_they_say_more() -> None:
    known = knowledge(held=made(0.8))
    assert judged(known, timed=1.0).cost == pytest.approx(1.0)
    assert judged(known, timed=0.001).cost == pytest.approx(2 * 0.1 * FORWARD)
    assert judged(known, Option(MEMORY, 2), timed=1.0).cost == 0.0, "a memory runs nothing"


def test_only_the_first_rung_goes_by_the_share() -> None:
    assert judged(knowledge(held=made(0.8)), Option("input", 4)).share is None


@pytest.mark.parametrize(
    ("share", "learnable"), [(LEARNABLE + 0.2, True), (LEARNABLE - 0.2, False)]
)
def test_by_high_losses_is_chosen_only_where_progress_is_made_on_them(
    share: float, learnable: bool
) -> None:
    known = knowledge(memory=made(share))
    for scorer in (MEMORY, PREDICTED):
        found = judged(known, Option(scorer, 2))
        assert found.learnable is learnable
        assert (found.share is None) == (scorer == MEMORY)
    assert judged(knowledge(), Option(PREDICTED, 2)).learnable is False
    assert judged(knowledge(), Option(MEMORY, 2)).learnable is None


def test_where_no_progress_is_made_there_is_nothing_to_be_had() -> None:
    found = judged(knowledge(held=Progress(0.0, 0.0, 0.0, 0.0)))
    assert (found.share, found.speedup) == (0.0, 0.0)


@pytest.mark.parametrize(
    "found", [Progress(0.02, -0.01, 1e-4, 1e-4), Progress(-0.3, 0.1, 0.0, 0.0)]
)
def test_progress_within_noise_has_no_share_for_people_or_the_log(found: Progress) -> None:
    for known in (knowledge(held=found), knowledge(new=found)):
        one = judged(known)
        assert (one.share, one.speedup, one.sure) == (0.0, 0.0, 1.0)
        assert known.summary("input", 100)["learning_share"] is None
        assert not one.to_plain().keys() & {"share", "error", "speedup", "sure"}


def test_what_is_dropped_and_gets_worse_is_said_of_what_is_in_use() -> None:
    worse = Progress(0.5, -0.4, 1e-6, 1e-6)
    assert judged(knowledge(held=worse), using=True).forgets
    assert not judged(knowledge(held=worse), using=False).forgets
    assert judged(knowledge(held=made(0.8)), vetoed=True).vetoed
