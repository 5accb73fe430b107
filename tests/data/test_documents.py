"""Packed batches: where in a row each document is."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tests.fuzz.packed
from sifting import Sifter
from sifting.data.documents import document_of_position, documents
from sifting.data.samples import Samples
from tests.helpers.packed import DOCUMENTS, language_modeling


def test_padding_to_a_multiple_is_no_document() -> None:
    collate = language_modeling(padding_free=True, pad_to_multiple_of=8)
    batch = collate(DOCUMENTS[:3])
    assert batch["input_ids"].shape == (1, 16)  # 10 tokens, and 6 documents of padding
    assert Samples().size(batch) == 3
    assert document_of_position(batch).tolist() == [[0] * 3 + [1] * 5 + [2] * 2 + [-1] * 6]
    taken = Samples().take(batch, torch.tensor([2, 0]))
    assert taken["input_ids"].tolist() == [[30, 31, 10, 11, 12]]
    assert taken["cu_seq_lens_q"].tolist() == [0, 2, 5]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            {"position_ids": torch.tensor([[7, 8, 0, 1]])},
            "starts at position 7 instead of 0: it was cut",
        ),
        ({"position_ids": torch.tensor([[0, 1, 0, 1], [5, 6, 7, 8]])}, "row 1 .*position 5"),
        (
            {
                "position_ids": torch.tensor([[0, 1, 0, 1]]),
                "cu_seq_lens_q": torch.tensor([0, 3, 4]),
            },
            "cu_seq_lens_q and position_ids do not agree",
        ),
        (
            {"input_ids": torch.zeros(1, 4), "cu_seq_lens_q": torch.tensor([0, 3, 9])},
            r"cu_seq_lens_q .* does not divide 1 row\(s\) of 4 tokens",
        ),
        (
            (
                {"input_ids": torch.zeros(1, 4), "position_ids": torch.tensor([[0, 1, 0, 1]])},
                torch.zeros(1, 4),
            ),
            "yield one dict with 'labels' in it",
        ),
    ],
    ids=["cut", "cut row", "marks differ", "wrong lengths", "pair"],
)
def test_packing_that_cannot_be_undone_is_refused(batch: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Samples().size(batch)


@pytest.mark.parametrize(
    "batch",
    [
        {"input_ids": torch.zeros(2, 4), "position_ids": torch.arange(4).expand(2, 4)},
        {  # padded on the left
            "input_ids": torch.zeros(2, 4),
            "position_ids": torch.tensor([[1, 1, 0, 1], [0, 1, 2, 3]]),
            "attention_mask": torch.tensor([[0, 0, 1, 1], [1, 1, 1, 1]]),
        },
        {
            "input_ids": torch.zeros(2, 4),
            "position_ids": torch.tensor([[0, 1, 0, 0], [0, 1, 2, 3]]),
        },
        {
            "input_ids": torch.zeros(2, 4),
            "position_ids": torch.tensor([[2, 3, 1, 1], [2, 3, 4, 5]]),
        },
        {"input_ids": torch.zeros(2, 4), "position_ids": torch.arange(4)[None]},
        {"input_ids": torch.zeros(2, 4), "position_ids": torch.arange(24).reshape(3, 2, 4)},
        torch.zeros(2, 4),
    ],
    ids=["plain", "left", "right", "roberta", "shared", "axes", "tensor"],
)
def test_rows_of_other_batches_are_samples_as_ever(batch: Any) -> None:
    assert documents(batch) is None
    if isinstance(batch, dict) and len(batch["position_ids"]) == 2:
        assert Samples().take(batch, torch.tensor([1]))["input_ids"].shape == (1, 4)
    with pytest.raises(ValueError, match="the batch is not packed"):
        document_of_position(batch)


def test_rows_stay_rows_if_told_so() -> None:
    batch = {
        "input_ids": torch.arange(8).reshape(2, 4),
        "position_ids": torch.tensor([[0, 1, 0, 1]] * 2),
    }
    assert Samples().size(batch) == 4
    by_row = Samples(batch_size="input_ids")
    assert by_row.size(batch) == 2
    assert by_row.take(batch, torch.tensor([1]))["input_ids"].tolist() == [[4, 5, 6, 7]]


def test_a_row_of_documents_that_nobody_marked_says_how_to_mark_them() -> None:
    ids = torch.randint(0, 20, (1, 12))
    sifter = Sifter(tests.fuzz.packed.Bigrams(), exit="last", score="loss")
    with pytest.raises(ValueError, match=r"candidate batch of 1 .*position_ids that restart"):
        sifter.select({"input_ids": ids, "labels": ids})
