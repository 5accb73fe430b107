from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sifting.data.joining import join


def text(*lengths: int, pad: int = 9) -> dict[str, Any]:
    """Sentences of some lengths, padded to the longest."""
    longest = max(lengths)
    mask = torch.tensor([[1] * n + [0] * (longest - n) for n in lengths])
    ids = torch.arange(longest).repeat(len(lengths), 1).masked_fill(mask == 0, pad)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def test_sequences_are_filled_up_with_what_the_batch_pads_with() -> None:
    found = join([text(3, 2), text(5)])
    assert found["input_ids"].tolist() == [[0, 1, 2, 9, 9], [0, 1, 9, 9, 9], [0, 1, 2, 3, 4]]
    assert found["attention_mask"].sum(1).tolist() == [3, 2, 5]
    assert found["labels"][0].tolist() == [0, 1, 2, -100, -100]


def test_a_value_that_is_given_is_taken() -> None:
    parts = [{"x": torch.ones(1, 2)}, {"x": torch.ones(1, 3)}]
    assert join(parts, pad=0.5)["x"][0].tolist() == [1, 1, 0.5]
    assert join(parts, pad={"x": 7})["x"][0].tolist() == [1, 1, 7]


def test_members_of_every_kind() -> None:
    parts = [
        (torch.zeros(2, 3), np.arange(2), ["a", "b"]),
        (torch.ones(1, 3), np.arange(1), ["c"]),
    ]
    x, numbers, names = join(parts)
    assert x.shape == (3, 3)
    assert numbers.tolist() == [0, 1, 0]
    assert names == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [{"x": torch.ones(1, 2)}, {"x": torch.ones(1, 3)}],
            r"x has 2 and 3 positions .* pass pad=\{'x': …\}, or draws='batch'",
        ),
        (
            [{"x": torch.ones(1, 2, 4)}, {"x": torch.ones(1, 2, 5)}],
            r"x is of shape \(1, 2, 4\) and \(1, 2, 5\)",
        ),
        (
            [(torch.ones(2, 1), torch.ones(2)), (torch.ones(2, 1),)],
            "one has 2 members .* another 1 members",
        ),
        ([{"x": torch.ones(2)}, {"x": ["a", "b"]}], "cannot be joined: (x is a|one has)"),
    ],
)
def test_what_cannot_be_joined_is_refused_by_name(parts: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        join(parts)
