from __future__ import annotations

import threading

import pytest

from sifting.training.rank_watch import Sign, hung, watching


def sign(rank: int, update: int, doing: str, *, silent: float = 1.0, still: float = 100.0) -> Sign:
    return Sign(rank, f"process {rank}", update, doing, silent, still)


def test_a_rank_that_says_nothing_is_named_whatever_it_does() -> None:
    signs = {0: sign(0, 5, "backward"), 1: sign(1, 5, "evaluation", silent=70)}
    assert hung(signs, 60) == (
        "rank 1 (process 1) has not answered for 70 s, since update 5 (evaluation)"
    )
    assert hung(signs, 80) is None


def test_of_ranks_that_stand_still_the_one_that_the_others_wait_for_is_named() -> None:
    signs = {0: sign(0, 5, "backward"), 1: sign(1, 5, "drawing"), 2: sign(2, 5, "backward")}
    assert hung(signs, 60) == (
        "rank 1 (process 1) has not moved on for 100 s, since update 5 (reading and choosing samples)"
    )


def test_where_nobody_is_behind_all_are_named() -> None:
    said = hung({0: sign(0, 5, "backward"), 1: sign(1, 5, "backward")}, 60)
    assert said is not None
    assert "rank 0" in said
    assert "rank 1" in said


@pytest.mark.parametrize("doing", ["evaluation", "saving"])
def test_what_may_take_long_is_waited_for(doing: str) -> None:
    assert hung({0: sign(0, 5, doing), 1: sign(1, 5, "drawing")}, 60) is None


def test_one_that_still_moves_is_waited_for() -> None:
    assert hung({0: sign(0, 5, "backward"), 1: sign(1, 4, "drawing", still=3)}, 60) is None


def test_a_rank_alone_is_not_watched() -> None:
    before = threading.active_count()
    with watching(object(), 1.0, label="sift train"):  # type: ignore[arg-type]
        assert threading.active_count() == before
