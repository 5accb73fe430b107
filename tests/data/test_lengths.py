from __future__ import annotations

import torch

from sifting.data.lengths import labelled_counts, token_counts, without_padding
from tests.helpers.documents import documents, packed, padded

LENGTHS = [7, 3, 12]


def test_lengths_are_the_same_padded_or_packed():
    found = documents(LENGTHS)
    for batch in (padded(found), packed(found)):
        assert token_counts(batch).tolist() == LENGTHS
        counts = labelled_counts(batch, batch["labels"], len(found))
        assert counts.tolist() == [n - 1 for n in LENGTHS]


def test_where_there_is_no_mask_every_row_is_whole():
    ids = torch.zeros(2, 5, dtype=torch.long)
    assert token_counts({"input_ids": ids}).tolist() == [5, 5]
    assert token_counts((ids, ids)).tolist() == [5, 5]
    assert token_counts({"inputs_embeds": torch.zeros(2, 5, 3)}).tolist() == [5, 5]
    for other in (torch.zeros(2, 5), (torch.zeros(2, 3, 8, 8), ids), [], "text", {"x": ids}):
        assert token_counts(other) is None


def test_columns_of_padding_alone_are_cut():
    batch = {**padded(documents(LENGTHS), 20), "names": ["a", "b", "c"], "score": torch.zeros(3, 4)}
    cut = without_padding(batch)
    assert {k: v.shape[1] for k, v in cut.items() if k in ("input_ids", "labels")} == {
        "input_ids": 12,
        "labels": 12,
    }
    assert cut["names"] == ["a", "b", "c"]
    assert cut["score"].shape == (3, 4)
    rounded = without_padding(padded(documents(LENGTHS), 32))
    assert rounded["input_ids"].shape[1] == 16  # a multiple of eight stays one


def test_nothing_is_cut_that_might_not_go_by_token():
    batch = {**padded(documents(LENGTHS), 20), "features": torch.zeros(3, 20)}
    assert without_padding(batch) is batch
    on_the_left = {k: v.flip(1) for k, v in padded(documents(LENGTHS), 20).items()}
    assert without_padding(on_the_left) is on_the_left
    assert without_padding(whole := packed(documents(LENGTHS))) is whole
    assert without_padding((torch.zeros(2, 3), torch.zeros(2))) is not None


def test_samples_of_several_rows_have_the_tokens_of_all_of_them():
    mask = torch.tensor([[[1, 1, 1], [1, 0, 0]], [[1, 1, 0], [1, 1, 0]], [[1, 1, 1], [1, 1, 1]]])
    pairs = {"input_ids": torch.zeros(3, 2, 3).long(), "attention_mask": mask}
    assert token_counts(pairs).tolist() == [4, 4, 6]
    assert token_counts({"input_ids": pairs["input_ids"]}).tolist() == [6, 6, 6]
    # a mask of who sees whom says nothing of padding
    seen = {"input_ids": torch.zeros(3, 4).long(), "attention_mask": torch.ones(3, 4, 4)}
    assert token_counts(seen).tolist() == [4, 4, 4]
