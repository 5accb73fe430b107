"""One training step, as plain values."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sifting.step import IdChoice, Selection, Step


def selection(indices: list[int]) -> Selection:
    kept = torch.tensor(indices)
    flags = torch.zeros(len(indices), dtype=torch.bool)
    return Selection(kept, torch.ones(len(indices)), torch.zeros(4), None, flags)


def choice(indices: list[int], *, first: int = 0, ids: list[Any] | None = None) -> IdChoice:
    kept = torch.tensor(indices)
    size = len(indices)
    flags = torch.zeros(size, dtype=torch.bool)
    named = [f"s{i}" for i in indices] if ids is None else ids
    return IdChoice(named, kept, torch.ones(size), torch.zeros(8), flags, 0, size, first=first)


def test_a_step_takes_the_ids_of_what_was_kept() -> None:
    step = Step(2, selection([1, 3]))
    assert step.ids is None
    named = step.of_ids(["a", "b", "c", "d"], [7, 6, 5, 4])
    assert (named.ids, named.drawn) == (["b", "d"], [6, 4])
    assert step.ids is None, "it is frozen"


def test_alone_what_is_trained_stands_where_it_was_drawn() -> None:
    assert choice([1, 3]).rows(4) == [1, 3]
    assert choice([1, 3]).with_candidates(["s0", "s1", "s2", "s3"]) == ["s0", "s1", "s2", "s3"]


def test_what_comes_of_other_ranks_is_read_behind_ones_own_candidates() -> None:
    """The second of two ranks with four candidates each trains one of the first rank's."""
    one = choice([2, 5, 7], first=4)
    assert one.rows(4) == [4, 1, 3]
    assert one.with_candidates(["s4", "s5", "s6", "s7"]) == ["s4", "s5", "s6", "s7", "s2"]


def test_a_choice_comes_back_from_plain_values() -> None:
    one = choice([2, 5], first=4)
    again = IdChoice.from_plain(one.to_plain())
    assert (again.ids, again.first, again.chosen) == (one.ids, 4, None)
    assert torch.equal(again.indices, one.indices)


@pytest.mark.parametrize(
    ("name", "value"), [("ids", 3), ("indices", torch.zeros(2, 2)), ("kept", -1), ("first", "x")]
)
def test_a_damaged_choice_is_refused_by_its_place(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"'{name}' of a choice made ahead"):
        IdChoice.from_plain({**choice([1]).to_plain(), name: value})
