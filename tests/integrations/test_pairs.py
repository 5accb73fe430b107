"""Pairs as samples and as rows."""

from __future__ import annotations

import torch
from torch import nn

from sifting.integrations.pairs import Known, fold, recorded, some_rows, unfold


def test_folding_is_undone() -> None:
    rows = {"input_ids": torch.arange(12).reshape(6, 2), "margin": torch.zeros(3)}
    assert fold(rows)["input_ids"].shape == (3, 2, 2)
    assert fold(rows)["input_ids"][1].tolist() == [[2, 3], [8, 9]]
    assert torch.equal(unfold(fold(rows))["input_ids"], rows["input_ids"])
    assert torch.equal(unfold(rows)["input_ids"], rows["input_ids"])


def test_a_pair_is_taken_with_what_it_has_alone() -> None:
    rows = {"x": torch.arange(6), "margin": torch.tensor([7, 8, 9]), "name": "train"}
    found = some_rows(rows, rows_R=torch.tensor([1, 4]), size=3)
    assert found["x"].tolist() == [1, 4]
    assert found["margin"].tolist() == [8]
    assert found["name"] == "train"


def test_outputs_are_written_down_in_the_order_of_calls_and_given_again() -> None:
    one, other = nn.Linear(2, 1), nn.Linear(2, 3)
    with recorded(one, None, other) as outputs:
        other(torch.zeros(4, 2))
        one(torch.zeros(4, 2))
    one(torch.zeros(5, 2))
    assert [tuple(output.shape) for output in outputs] == [(4, 3), (4, 1)]
    assert Known(outputs[0])(input_ids=None) is outputs[0]
