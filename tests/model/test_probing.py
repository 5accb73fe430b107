"""The first batch: which of its samples are tried."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sifting.model.agreement import verify
from sifting.model.call import Call
from sifting.model.probing import probe_rows, signature
from tests.helpers.plans import Language, plan_of, text

X, Y = torch.randn(8, 3), torch.arange(8) % 4


def test_what_two_samples_cannot_tell_more_can() -> None:
    batch = text(6)
    batch["labels"] = torch.full((6, 6), 7)
    batch["labels"][5] = 3
    model = Language(weight=torch.tensor([1.0] * 3 + [9.0] + [1.0] * 16))
    plan = plan_of(model, {name: value[:2] for name, value in batch.items()})
    assert plan.kind == "parts"
    with (
        torch.no_grad(),
        pytest.raises(ValueError, match=r"the model's own loss of 6 samples is .*class weights"),
    ):
        verify(plan, model, batch)
    good = Language()
    with torch.no_grad():
        verify(plan_of(good, text(2)), good, batch)


def test_rows_that_tell_most_are_tried() -> None:
    def rows(labels: Tensor) -> list[int] | None:
        found = probe_rows(Call(), (torch.zeros(len(labels), 3), labels))
        return None if found is None else found.tolist()

    assert rows(torch.tensor([1, 1, 1, 2, 1])) == [0, 1, 3]
    assert rows(torch.tensor([1, 2, 1, -1])) == [0, 1, 3]
    padded = torch.arange(20).reshape(4, 5) + 1
    padded[2, 3:] = 0
    assert rows(padded + 1000 * (padded > 0)) == [0, 1, 2]
    padded[3, 1] = 255
    assert rows(padded) == [0, 1, 2, 3]
    assert rows(torch.full((4,), -100)) is None
    assert rows(torch.tensor([[1.0, 0], [0, 1.0], [1.0, 1.0]])) == [0, 2]


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (torch.tensor([0, 1]), (False, 1, None)),
        (torch.tensor([0, -100]), (False, 1, None)),
        (torch.tensor([0, -1]), (False, 1, -1)),
        (torch.tensor([-1, -2]), (False, 1, 0)),
        (torch.tensor([[0.5, 0.5], [1.0, 0.0]]), (True, 2, None)),
        (torch.tensor([[0.5, 0.9], [1.0, 0.0]]), (True, 2, 0)),
        (torch.tensor([True, False]), (False, 1, None)),
    ],
)
def test_batches_of_one_kind_share_a_plan(labels: Tensor, found: tuple[object, ...]) -> None:
    batch = (torch.zeros(len(labels), 3), labels)
    assert signature(Call(), batch) == (("labels", *found),)


def test_a_zero_among_the_labels_may_be_told_apart() -> None:
    some, none = (
        (torch.zeros(2, 3), torch.tensor([0, 1])),
        (torch.zeros(2, 3), torch.tensor([2, 1])),
    )
    assert signature(Call(), some) == signature(Call(), none)
    assert signature(Call(), some, zeros=True) != signature(Call(), none, zeros=True)


def test_where_nothing_has_a_label_nothing_is_tried() -> None:
    assert probe_rows(Call(), (torch.zeros(3, 2), torch.full((3,), -100))) is None
