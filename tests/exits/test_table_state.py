"""What a state may say of a memory of losses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sifting.exits.table_state import check_table

SOUND: dict[str, Any] = {
    "losses": torch.tensor([0.5, torch.nan, 2.0]),
    "passed": torch.tensor([0, 3, 1]),
    "keys": ["a", "b", "c"],
    "steps": 7,
    "told": 5,
    "untold_ids": [["a", "b"], ["c"]],
    "untold": [torch.zeros(2), torch.zeros(1)],
}


def test_a_sound_state_is_taken_whole_or_without_what_is_not_always_there() -> None:
    check_table(SOUND, most=9)
    check_table({"losses": torch.zeros(0), "passed": torch.zeros(0)}, most=9)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"losses": torch.tensor([1, 2, 3])}, "'losses' of the memory"),
        ({"losses": torch.tensor([0.0, torch.inf, 1.0])}, "'losses'"),
        ({"passed": torch.tensor([0, 1])}, "'passed'"),
        ({"passed": torch.tensor([0, 1, 10])}, "counts from 0 to 9"),
        ({"passed": torch.tensor([0, 1, -1])}, "'passed'"),
        ({"keys": ["a", "a", "b"]}, "a list of IDs, each once"),
        ({"keys": [[1], [2], [3]]}, "a list of IDs"),
        ({"keys": ["a", "b", "c", "d"]}, "has 4 IDs, and losses of 3 samples"),
        ({"told": 8}, "'told'"),
        ({"untold_ids": [["a", "b"]]}, "has 1 batches of IDs, and losses of 2"),
        ({"untold": [torch.zeros(3), torch.zeros(1)]}, "'untold'"),
    ],
)
def test_what_cannot_be_is_refused_by_its_name(spoil: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_table({**SOUND, **spoil}, most=9)
