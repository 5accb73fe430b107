"""What every scoring pass must hold."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sifting.data.samples import Samples
from sifting.exits.checks import check_count, check_take, in_step
from sifting.model.call import Call
from tests.helpers.plans import plan_of


def test_there_is_a_score_for_each_sample() -> None:
    batch = (torch.zeros(4, 3), torch.arange(4))
    check_count(Samples(), batch, 4)
    with pytest.raises(ValueError, match=r"holds 4 samples .* make 2 scores .*batch_size="):
        check_count(Samples(), batch, 2)


def test_what_take_gives_are_the_samples_that_it_was_asked_for() -> None:
    batch = (torch.randn(6, 3), torch.arange(6))
    check_take(Call(take=lambda b, i: (b[0][i], b[1][i])), batch)
    for wrong in (lambda i: i.flip(0), lambda i: torch.arange(len(i))):
        with pytest.raises(
            ValueError, match=r"take= gave samples with labels .* the indices \[1, 3, 5\]"
        ):
            check_take(Call(take=lambda b, i, w=wrong: (b[0][w(i)], b[1][w(i)])), batch)
    gaps = torch.tensor([0.0, float("nan"), 1.0, float("nan")])
    check_take(Call(take=lambda b, i: (b[0][i], b[1][i])), (torch.randn(4, 3), gaps))


def test_of_packed_rows_there_is_one_for_each_document() -> None:
    ids = torch.tensor([[0, 1, 0, 1, 2]])
    batch = {"input_ids": ids, "position_ids": ids, "labels": ids}
    check_count(Samples(), batch, 2)
    with pytest.raises(ValueError, match=r"packed, 2 documents in 1 rows, .* one value per row"):
        check_count(Samples(), batch, 1)


def test_ranks_in_step_run_the_model_equally_often() -> None:
    plan = plan_of(nn.Linear(3, 4), (torch.randn(6, 3), torch.arange(6) % 4))
    assert in_step(plan).heads == plan.heads, "nothing of it is sharded"


class Reducing(nn.Module):
    """Gives the loss of a batch, and nothing that it could be made of."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 4)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(self.linear(x), labels)


def test_what_needs_a_forward_for_each_sample_cannot_stay_in_step() -> None:
    plan = plan_of(Reducing(), {"x": torch.randn(6, 3), "labels": torch.arange(6) % 4})
    assert plan.kind == "model"
    with pytest.raises(ValueError, match="one labelled sample at a time"):
        in_step(plan)
