from __future__ import annotations

import numpy as np
import pytest
import torch

from sifting.recipes.text.blocks import Blocks
from sifting.recipes.text.tokens import TokenizedText
from sifting.training.recipe import DataError
from tests.helpers.text import numbered


def running(tokens: TokenizedText, documents: list[int], end: int) -> list[int]:
    """The text as it should stand, without any of the library's code."""
    out: list[int] = []
    for d in documents:
        low, high = (tokens.sentences_S[tokens.documents_D[d + i]] for i in (0, 1))
        out += [*tokens.tokens_T[low:high].tolist(), end]
    return out


@pytest.mark.parametrize("length", [2, 3, 7, 16])
def test_blocks_are_the_running_text(length: int) -> None:
    tokens = numbered([[3, 2], [1], [9], [4, 4], [1], [1], [20]])
    documents = [0, 1, 3, 4, 5, 6]
    blocks = Blocks(tokens, np.array(documents), end=1, length=length)
    text = running(tokens, documents, 1)
    assert len(blocks) == len(text) // length
    batch = blocks.batch(np.arange(len(blocks)), seed=0)
    assert batch["input_ids"].flatten().tolist() == text[: len(blocks) * length]
    assert torch.equal(batch["labels"], batch["input_ids"])
    assert 13 not in batch["input_ids"]  # a document that was not asked for


def test_text_that_fills_no_block_is_refused() -> None:
    with pytest.raises(DataError, match="2 documents of 7 tokens in all do not fill a block of 8"):
        Blocks(numbered([[3], [2]]), np.arange(2), end=1, length=8)
    with pytest.raises(DataError, match="length=1 leaves nothing to predict"):
        Blocks(numbered([[3], [2]]), np.arange(2), end=1, length=1)
