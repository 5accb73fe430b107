"""Dividing a batch of known size: which members go by sample, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sifting.data.divide import Division, lies_end_to_end

T = torch.zeros


def divided(batch: Any, size: int, **options: Any) -> list[Any]:
    """The members that were handed over, in order."""
    found: list[Any] = []

    def note(member: Any) -> Any:
        found.append(member)
        return member

    Division(size, note, **options).apply(batch)
    return found


def test_what_has_one_entry_a_sample_is_handed_over_and_the_rest_carried() -> None:
    x, table, names = T(4, 2), T(7, 3), ["a", "b", "c", "d"]
    assert divided({"x": x, "table": table, "names": names, "lr": 0.1}, 4) == [x, names]


def test_labels_in_a_list_of_two_are_members_and_not_samples() -> None:
    x, y = T(2, 3), T(2)
    found = divided([x, y], 2, labels={"labels": y})
    assert [id(member) for member in found] == [id(x), id(y)]


def test_tokens_that_are_their_own_labels_are_divided_beside_what_is_carried() -> None:
    ids = torch.zeros(8, 10, dtype=torch.long)
    batch = {"input_ids": ids, "position_ids": torch.arange(10)[None], "labels": ids}
    assert len(divided(batch, 8, labels={"labels": ids})) == 2
    with pytest.raises(ValueError, match="8 samples, by the labels or batch_size=, and no other"):
        divided({"table": T(5, 3), "labels": ids}, 8, labels={"labels": ids})


def test_what_a_member_was_it_stays() -> None:
    seen: dict[str, str] = {}
    table = T(3, 5)
    divided({"x": T(8), "table": table}, 8, seen=seen)
    found = divided({"x": T(3), "table": table}, 3, seen=seen)
    assert len(found) == 1, "the table has as many rows as the last batch has samples"
    with pytest.raises(
        ValueError, match=r"had one entry per sample so far, but not in this batch of 4"
    ):
        divided({"x": T(5), "y": T(4), "table": table}, 4, seen=seen)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            {"x": T(4), "edge_index": T(2, 9)},
            "has 'edge_index', so some members hold all samples end",
        ),
        ({"x": T(4), "input_ids": T(9, 3)}, "'input_ids' goes by sample"),
        ({"x": T(4), "time": T(7, 4)}, "the 4 samples along its second dimension"),
        ({"x": T(4), "set": {1, 2, 3, 4}}, "a type that cannot be divided"),
        ({"x": T(4), "views": [T(4, 2)] * 4}, "one entry per sample, or members that hold all"),
        ({"x": T(9, 2), "lengths": torch.tensor([2, 3, 1, 3])}, "holds all samples end to end"),
    ],
)
def test_what_could_be_divided_wrongly_is_refused_with_a_way_out(batch: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as said:
        divided(batch, 4)
    assert "take=lambda batch, indices" in str(said.value)


def test_one_row_of_positions_or_masks_may_stand_for_all() -> None:
    x = T(4, 6)
    assert divided({"x": x, "position_ids": T(1, 4), "causal_mask": T(1, 4)}, 4) == [x]


def test_several_positions_a_token_have_samples_second() -> None:
    positions = torch.arange(3 * 4 * 5).reshape(3, 4, 5)
    (found,) = divided({"position_ids": positions}, 4)
    assert found.shape == (4, 3, 5)


def test_of_one_sample_nothing_can_be_lost() -> None:
    assert len(divided({"x": T(1, 2), "edge_index": T(2, 9)}, 1)) == 1


@pytest.mark.parametrize(
    ("numbers", "found"),
    [
        ([0, 4, 6], True),  # where each starts
        ([4, 2, 3], True),  # how long each is
        ([0, 4, 6, 9], True),  # between them
        ([0, 1, 2], False),  # names of samples
        ([0, 4, 6, 8], False),
        ([5, 5, 5], False),
        ([-1, 5, 5], False),
    ],
)
def test_numbers_that_say_where_samples_lie(numbers: list[int], found: bool) -> None:
    assert lies_end_to_end(9, torch.tensor(numbers), 3) is found
