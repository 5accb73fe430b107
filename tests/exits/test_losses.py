"""`losses=` and score functions of rows, from the user's side."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn

from sifting import Sifter
from tests.helpers.models import SMALL


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(3, 6), nn.Sequential(*[nn.Linear(6, 6) for _ in range(3)]), nn.Linear(6, 4)
    )


def denoising(model: nn.Module, batch: Any) -> Tensor:
    return (model(batch[0]) - 1).square().mean(dim=1)


def test_losses_are_scored_and_audited() -> None:
    net, batch = model(), (torch.randn(8, 3), torch.arange(8) % 4)
    sifter = Sifter(net, exit="last", score="loss", losses=denoising, audit_every=1)
    with torch.no_grad():
        torch.testing.assert_close(sifter.score(batch), denoising(net, batch))
    sifter.select(batch)
    assert sifter.stats().rho_approx > 1
    assert "losses=, one value a sample" in repr(sifter)
    early = Sifter(net, exit=1, score="loss", losses=denoising).score(batch)
    assert not torch.allclose(early, sifter.score(batch))


def test_losses_that_are_not_one_a_sample_are_refused() -> None:
    batch = (torch.randn(8, 3), torch.arange(8) % 4)
    sifter = Sifter(model(), exit="last", score="loss", losses=lambda m, b: m(b[0]).mean())
    with pytest.raises(ValueError, match=r"losses= gave \(\) for \d samples"):
        sifter.score(batch)


@pytest.mark.parametrize("exit", [1, "last", "tuned"])
def test_a_score_function_of_rows_on_a_language_model(exit: Any) -> None:
    net = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    ids = torch.randint(5, 150, (6, 8))
    labels = torch.where(torch.arange(8) < 3, ids, -100)

    def unsure(logits_NC: Tensor, labels_N: Tensor) -> Tensor:
        assert logits_NC.ndim == 2 or len(logits_NC) == len(labels_N)
        return 1 - logits_NC.softmax(-1).amax(-1)

    selection = Sifter(net, exit=exit, score=unsure).select({"input_ids": ids, "labels": labels})
    assert selection.scores.shape == (6,)
    assert ((selection.scores > 0) & (selection.scores < 1)).all()
