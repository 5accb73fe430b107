"""What sifting cost, what it kept and how well it chose, in numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sifting.measure.meter import Meter
from sifting.measure.stats import QUALITY, Stats, reduced, share_of

EMPTY = Meter().stats()
FULL = replace(
    EMPTY,
    steps=10,
    selections=8,
    candidates_seen=640,
    samples_trained=320,
    seconds_scoring=1.0,
    seconds_between=9.0,
    audits=12,
    scoring_share=0.1,
    recall=0.7,
    rank_correlation=0.5,
    rho_approx=1.25,
)


def test_it_reads_like_a_dict() -> None:
    assert FULL["steps"] == dict(FULL)["steps"] == 10
    assert len(FULL) == len(dict(FULL))
    with pytest.raises(KeyError):
        FULL["nothing"]


def test_it_prints_as_a_short_report() -> None:
    assert str(FULL).splitlines() == [
        "10 steps: trained 320 of 640 candidates (50%); 8 batches were sifted",
        "scoring took 1.00 s beside 9.00 s of training (10.0%), auditing 0.00 s, observing 0.00 s",
        "choice, over the last 10 of 12 audits: rho_approx 1.25 (random: 1.00), recall 0.70, "
        "rank correlation 0.50",
    ]
    assert str(replace(FULL, rho_approx=None)).endswith("choice: not audited yet")


def test_every_part_that_is_known_has_its_line() -> None:
    known = replace(
        FULL,
        tokens_seen=100,
        tokens_trained=40,
        economy="4 rows",
        option="1 in 2",
        since=3,
        why="it pays",
        saving=0.12,
        rho_tokens=1.1,
        rho_explored=0.9,
        misclassified=0.3,
    )
    said = str(known)
    for words in (
        "40 of 100 tokens trained (40%)",
        "scored of each candidate: 4 rows",
        "autopilot: 1 in 2 since step 3, since it pays",
        "saved 12% of the time",
        "loss per token of the kept over that of the candidates: 1.10",
        "from the random picks in training: 0.90",
        "misclassified among the kept: 30%",
    ):
        assert words in said


def test_scalars_are_what_is_known() -> None:
    found = FULL.scalars()
    assert found["sifting/rho_approx"] == 1.25
    assert "sifting/rho_explored" not in found
    assert "sifting/tokens_seen" not in found, "of samples without tokens"
    assert "sifting/tokens_trained" in replace(FULL, tokens_seen=5).scalars()
    assert {f"sifting/{name}" for name in QUALITY if FULL[name] is not None} <= set(found)


def test_ranks_add_up_samples_and_average_what_they_measure() -> None:
    other = replace(FULL, steps=9, candidates_seen=600, seconds_scoring=3.0, recall=None, since=4)
    found = reduced([(FULL, (1.0, 2.0)), (other, (5.0, 2.0))])
    assert isinstance(found, Stats)
    assert (found.candidates_seen, found.steps) == (1240, 10)
    assert found.seconds_scoring == 2.0
    assert found.recall == 0.7, "of the ranks that have it"
    assert found.rho_explored == pytest.approx(6.0 / 4.0), "a ratio of sums"
    assert found.since == FULL.since
    assert reduced([(EMPTY, None)]).rho_explored is None


def test_a_share_of_nothing_is_nothing() -> None:
    assert (share_of(0.0, 0.0), share_of(1.0, 3.0)) == (0.0, 0.25)


def test_throughput_is_of_all_that_was_spent() -> None:
    spent = replace(
        FULL,
        tokens_seen=800,
        tokens_trained=400,
        seconds_scoring=1.0,
        seconds_auditing=1.0,
        seconds_between=5.0,
        seconds_loading=1.0,
    )
    assert spent.scalars()["sifting/tokens_seen_per_second"] == 100
    assert spent.scalars()["sifting/tokens_trained_per_second"] == 50
    assert "(50%); 100 seen a second, 50 trained a second" in str(spent)
    assert not replace(spent, tokens_seen=0).throughput()
