from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sifting.recipes.text.masking import IGNORED, Passages
from sifting.recipes.text.tokens import TokenizedText
from sifting.training.recipe import DataError
from tests.helpers.text import numbered, wordpiece

SEP, MASK = 3, 4


def make(tokens: TokenizedText, length: int = 16, **options: Any) -> Passages:
    documents = options.pop("documents", np.arange(len(tokens)))
    return Passages(tokens, documents, wordpiece(2000), length=length, **options)


def originals(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Tokens before they were masked."""
    return torch.where(batch["labels"] == IGNORED, batch["input_ids"], batch["labels"])


def test_passages_are_the_running_text_with_an_end_behind_each_document() -> None:
    passages = make(numbered([[3, 4], [5], [6, 2]]), length=8)
    text = originals(passages.batch(np.arange(len(passages)), seed=0)).flatten().tolist()
    running = [10] * 3 + [11] * 4 + [SEP] + [12] * 5 + [SEP] + [13] * 6 + [14] * 2 + [SEP]
    assert text == running[: 8 * (len(running) // 8)]


def test_only_documents_that_are_asked_for_are_read() -> None:
    passages = make(numbered([[9] * 3, [9] * 3, [9] * 3]), documents=np.array([0, 2]))
    text = originals(passages.batch(np.arange(len(passages)), seed=0))
    assert set(text.unique().tolist()) == {SEP, 10, 11, 12, 16, 17, 18}


def test_the_share_of_ordinary_tokens_is_masked_and_never_an_end() -> None:
    passages = make(numbered([[9] * 200] * 5), length=64, masked=0.3)
    batch = passages.batch(np.arange(len(passages)), seed=5)
    whole, ids, labels = originals(batch), batch["input_ids"], batch["labels"]
    chosen = labels != IGNORED
    assert not (chosen & (whole == SEP)).any()
    plain = (whole != SEP).sum(dim=1)
    assert torch.equal(chosen.sum(dim=1), (0.3 * plain).round().long())
    hidden = float((ids[chosen] == MASK).float().mean())
    assert abs(hidden - 0.8) < 3 * (0.8 * 0.2 / int(chosen.sum())) ** 0.5


def test_each_pass_has_new_masks_and_the_same_seed_the_same() -> None:
    passages = make(numbered([[9] * 20] * 5))
    indices = np.arange(len(passages))
    one, again, other = (passages.batch(indices, seed=s) for s in (1, 1, 2))
    assert all(torch.equal(one[k], again[k]) for k in one)
    assert not torch.equal(one["labels"], other["labels"])
    assert torch.equal(originals(one), originals(other))
    alone = passages.batch(indices[7:8], seed=1)
    assert all(torch.equal(one[k][7:8], alone[k]) for k in one)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(DataError, match=f"masked={share} is not between 0 and 1"):
        make(numbered([[30]]), masked=share)
