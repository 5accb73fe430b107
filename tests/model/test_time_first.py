from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting import Sifter
from sifting.model.call import Call
from sifting.model.time_first import refuse_time_first

IDS_TB, LABELS_TB = torch.randint(0, 20, (5, 8)), torch.randint(0, 4, (5, 8))


class Tagger(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.table, self.steps = nn.Embedding(20, 8), nn.LSTM(8, 8, **options)
        self.head = nn.Linear(16 if options.get("bidirectional") else 8, 4)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.steps(self.table(ids))[0])


def losses(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return F.cross_entropy(model(batch[0]).movedim(-1, 1), batch[1], reduction="none").mean(0)


@pytest.mark.parametrize("both_ways", [False, True])
@pytest.mark.parametrize("loss_fn", [None, nn.CrossEntropyLoss()])
def test_steps_of_time_are_not_taken_for_samples(both_ways: bool, loss_fn: Any) -> None:
    model = Tagger(bidirectional=both_ways)
    sifter = Sifter(model, exit="last", score="loss", loss_fn=loss_fn)
    with pytest.raises(ValueError, match=r"time first.*batch_first=True.*take=.*losses="):
        sifter.select((IDS_TB, LABELS_TB))


def test_the_remedies_of_that_message() -> None:
    model = Tagger()
    told = Sifter(
        model,
        exit="last",
        score="loss",
        batch_size=lambda batch: batch[0].shape[1],
        take=lambda batch, indices: (batch[0][:, indices], batch[1][:, indices]),
        losses=losses,
    )
    with torch.no_grad():
        wanted = losses(model, (IDS_TB, LABELS_TB))
    assert torch.allclose(told.score((IDS_TB, LABELS_TB)), wanted, atol=1e-6)
    assert told.select((IDS_TB, LABELS_TB)).batch[0].shape == (5, 4)
    model.steps.batch_first = True
    turned = Sifter(model, exit="last", score="loss")
    assert torch.allclose(turned.score((IDS_TB.T, LABELS_TB.T)), wanted, atol=1e-6)


def test_tokens_that_know_nothing_of_each_other_are_samples_along_the_first() -> None:
    model = nn.Sequential(nn.Embedding(20, 8), nn.Linear(8, 4))
    assert len(Sifter(model, exit="last", score="loss").score((IDS_TB, LABELS_TB))) == 5


def test_only_a_model_that_mixes_rows_and_not_columns_is_refused() -> None:
    x = torch.randn(5, 3, 4)
    rnn = nn.RNN(4, 4)

    class First(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return rnn(x)[0]

    class Last(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return rnn(x.transpose(0, 1))[0].transpose(0, 1)

    with torch.no_grad():
        for model, refused in ((First(), True), (Last(), False)):
            given = {"logits": model(x)}
            if refused:
                with pytest.raises(ValueError, match="samples lie along the second"):
                    refuse_time_first(Call(), model, x, given)
            else:
                refuse_time_first(Call(), model, x, given)
