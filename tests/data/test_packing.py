from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

import tests.fuzz.packed
from sifting.data.packing import pack, take_documents, unpack
from sifting.data.samples import Samples
from tests.helpers.packed import DOCUMENTS, LENGTHS, language_modeling

CHOSEN = [3, 0, 4]


def same(got: Any, wanted: Any) -> None:
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert torch.equal(torch.as_tensor(got[name]), torch.as_tensor(value)), name
        assert type(got[name]) is type(value), name


def test_generated_packings_are_undone_and_done_again() -> None:
    assert tests.fuzz.packed.FUZZ.run(examples=150)["right"] >= 150


@pytest.mark.parametrize("marks", [{}, {"return_flash_attn_kwargs": True, "return_seq_idx": True}])
def test_taking_documents_is_flattening_those_documents(marks: dict[str, bool]) -> None:
    collate = DataCollatorWithFlattening(**marks)
    batch = collate(DOCUMENTS)
    assert Samples().size(batch) == 5
    same(Samples().take(batch, torch.tensor(CHOSEN)), collate([DOCUMENTS[i] for i in CHOSEN]))


def test_padding_free_batches_of_trl() -> None:
    collate = language_modeling(padding_free=True)
    batch = collate(DOCUMENTS)
    assert batch["input_ids"].shape == (1, 16)
    same(take_documents(batch, torch.tensor(CHOSEN)), collate([DOCUMENTS[i] for i in CHOSEN]))


def test_best_fit_packing_of_trl_has_several_documents_a_sequence() -> None:
    rows = [
        {"input_ids": [10, 11, 12, 20, 21], "seq_lengths": [3, 2]},
        {"input_ids": [30, 31, 40, 41, 42], "seq_lengths": [2, 3]},
    ]
    free = language_modeling(padding_free=True)(rows)
    assert Samples().size(free) == 4
    taken = Samples().take(free, torch.tensor([2, 1]))
    assert taken["input_ids"].tolist() == [[30, 31, 20, 21]]
    assert taken["labels"].tolist() == [[-100, 31, -100, 21]]
    padded = language_modeling(return_position_ids=True)(rows)
    assert padded["input_ids"].shape == (2, 5)
    assert Samples().size(padded) == 4
    taken = Samples().take(padded, torch.tensor([3, 0]))
    assert taken["input_ids"].tolist() == [[40, 41, 42], [10, 11, 12]]


def test_a_model_gives_each_document_the_loss_it_has_alone() -> None:
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=64,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
    )
    model = LlamaForCausalLM(shape).eval()
    batch = DataCollatorWithFlattening()(DOCUMENTS)
    taken = Samples().take(batch, torch.tensor(CHOSEN))
    with torch.no_grad():
        # with a cache, the model does not look for packed documents
        together = model(**taken, use_cache=False).loss
        chosen = [DOCUMENTS[i] for i in CHOSEN]
        rows = [{name: torch.tensor([values]) for name, values in d.items()} for d in chosen]
        alone = [model(**row, use_cache=False).loss for row in rows]
    weights = torch.tensor([LENGTHS[i] - 1.0 for i in CHOSEN])
    expected = (torch.stack(alone) * weights).sum() / weights.sum()
    torch.testing.assert_close(together, expected)


def test_a_first_label_does_not_become_a_target_of_the_document_before() -> None:
    batch = {
        "input_ids": torch.tensor([[1, 2, 3, 4]]),
        "labels": torch.tensor([[1, 2, -100, 4]]),  # the first of a row is never a target
        "position_ids": torch.tensor([[0, 1, 0, 1]]),
    }
    taken = take_documents(batch, torch.tensor([1, 0]))
    assert taken["labels"].tolist() == [[-100, 4, -100, 2]]
    assert batch["labels"].tolist() == [[1, 2, -100, 4]]


def test_what_goes_by_document_follows() -> None:
    batch = {
        "input_ids": torch.arange(5)[None],
        "position_ids": torch.tensor([[0, 1, 2, 0, 1]]),
        "weights": torch.tensor([0.5, 2.0]),
        "names": ["a", "b"],
        "split": "train",
    }
    taken = Samples().take(batch, torch.tensor([1]))
    assert (taken["weights"].tolist(), taken["names"], taken["split"]) == ([2.0], ["b"], "train")


@pytest.mark.parametrize(
    ("name", "member"),
    [
        ("mask", torch.ones(1, 1, 5, 5)),
        ("bias", torch.ones(1, 5, 5)),
        ("table", torch.ones(7)),
        ("graphs", {"x": torch.zeros(7)}),
    ],
)
def test_what_goes_neither_by_token_nor_by_document_is_refused(name: str, member: Any) -> None:
    batch = {"input_ids": torch.arange(5)[None], "position_ids": torch.tensor([[0, 1, 2, 0, 1]])}
    with pytest.raises(ValueError, match=f"2 documents in 1 row.*{name!r} goes neither by token"):
        take_documents(batch | {name: member}, torch.tensor([1]))


def test_documents_travel_as_columns() -> None:
    samples = Samples()
    batch = DataCollatorWithFlattening()(DOCUMENTS)
    (parts,) = samples.columns(batch)
    assert [len(part["input_ids"]) for part in parts] == LENGTHS
    same(samples.with_columns(batch, [parts[1:3]]), take_documents(batch, torch.tensor([1, 2])))
    same(pack(batch, unpack(batch)), batch)
    with pytest.raises(ValueError, match="no documents"):
        pack(batch, [])
