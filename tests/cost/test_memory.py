"""Memory by the cost model against what autograd really keeps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sifting.cost.memory import CHUNK, ROWS, scoring_bytes, update_bytes
from sifting.model import parts
from tests.helpers.shapes import BERT, bert, bert_batch


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_update_bytes_count_what_autograd_keeps_of_a_block(dropout):
    def kept(layers: int, frozen: int = 0) -> int:
        shape = replace(BERT, layers=layers)
        model = bert(shape, dropout=dropout, attention="sdpa").train()
        for part in (model.bert.embeddings, *model.bert.encoder.layer[:frozen]):
            part.requires_grad_(not frozen)
        own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        held: dict[int, torch.Tensor] = {}

        def pack(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.untyped_storage().data_ptr() not in own:
                held[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            output = model(**bert_batch(shape, 4))
        assert output.loss.requires_grad
        return sum(tensor.untyped_storage().nbytes() for tensor in held.values())

    estimate = [update_bytes(replace(BERT, layers=n), 4, dropout=dropout > 0) for n in (3, 4)]
    assert estimate[1] - estimate[0] == pytest.approx(kept(4) - kept(3), rel=0.02)
    two, one = (update_bytes(BERT, 4, dropout=dropout > 0, frozen=n) for n in (2, 1))
    layers = BERT.layers
    assert one - two == pytest.approx(kept(layers, 1) - kept(layers, 2), rel=0.02)


def test_chunk_is_the_one_in_use():
    assert (CHUNK, ROWS) == (parts.CHUNK, parts.ROWS)


def test_scoring_bytes_do_not_grow_with_the_vocabulary_beyond_two_chunks():
    shape = replace(BERT, vocab=30522, length=512)
    wide = replace(shape, vocab=250_000)
    grown = scoring_bytes(wide, 64) - scoring_bytes(shape, 64)
    assert grown <= 4 * 2 * ROWS * 250_000
    assert scoring_bytes(shape, 64) < 64 * 512 * 30522 * 4 / 10


@pytest.mark.parametrize("wrong", [{"chunk": 0}, {"copies": 0}, {"itemsize": 0}, {"labelled": 1.5}])
def test_counts_that_cannot_be_are_named(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={value}"):
        scoring_bytes(BERT, 2, **wrong)


def test_halves_of_numbers_take_half_the_memory():
    for needed in (update_bytes, scoring_bytes):
        assert needed(BERT, 8, itemsize=2) == needed(BERT, 8, itemsize=4) / 2
