from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from sifting import Sifter
from sifting.data.filling import Filling

PAD = 49


def ids(length: int, rows: int = 1) -> Tensor:
    return torch.ones(rows, length, dtype=torch.long)


def batch_of(*lengths: int) -> dict[str, Tensor]:
    """Sequences of some lengths, padded to the longest, with labels for the shape's sake."""
    longest = max(lengths)
    mask = torch.tensor([[1] * n + [0] * (longest - n) for n in lengths])
    tokens = ids(longest, len(lengths)).masked_fill(mask == 0, PAD)
    labels = tokens.masked_fill(mask == 0, -100)
    return {"input_ids": tokens, "attention_mask": mask, "labels": labels}


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(PAD + 1, 8), nn.Linear(8, PAD + 1)

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
        logits = self.head(self.embed(input_ids))
        return {"loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())}


def pooled(batches: list[Any], **options: Any) -> list[Any]:
    return list(Sifter(Tagger(), policy="random", keep=0.5, **options)(batches))


def test_a_value_that_is_given_is_taken() -> None:
    column = [torch.ones(1, 2), torch.ones(1, 3)]
    assert Filling(0.5).value("x", column, []) == 0.5
    assert Filling({"x": 7}).value("x", column, []) == 7


def test_a_single_value_fills_up_inputs_and_neither_labels_nor_masks() -> None:
    batches = [batch_of(3, 3), batch_of(5, 5)] * 2  # in none of them is there padding
    for batch in pooled(batches, pad=PAD):
        padding = batch["input_ids"] == PAD
        assert torch.equal(batch["attention_mask"] == 0, padding)
        assert torch.equal(batch["labels"] == -100, padding)
    assert Filling({"labels": 3}).value("labels", [ids(2), ids(3)], [None, None]) == 3


def test_what_was_found_in_one_batch_holds_for_later_ones() -> None:
    # the last step draws one row of each of two batches, which happen to have no padding
    batches = [batch_of(3, 2), batch_of(5, 4), batch_of(4)]
    found = pooled(batches)
    assert [len(batch["labels"]) for batch in found] == [2, 2, 1]
    with pytest.raises(ValueError, match=r"input_ids has 3 and 5 positions .* cannot be found"):
        pooled([batch_of(3), batch_of(5)])


def test_what_was_found_is_part_of_the_state() -> None:
    sifter = Sifter(Tagger(), policy="random", keep=0.5)
    list(sifter([batch_of(3, 2), batch_of(5, 4)]))
    again = Sifter(Tagger(), policy="random", keep=0.5)
    again.load_state_dict(sifter.state_dict(epoch_over=True))
    (batch, _) = list(again([batch_of(3), batch_of(5)]))
    assert set(batch["input_ids"].flatten().tolist()) <= {1, PAD}
    state = sifter.state_dict(epoch_over=True)
    state["padding"] = {"input_ids": "many"}
    with pytest.raises(ValueError, match="'input_ids' of the padding"):
        again.load_state_dict(state)


def test_padding_that_is_not_one_value_is_not_found() -> None:
    filling, mask = Filling(), torch.tensor([[1, 0, 0]])
    with pytest.raises(ValueError, match="x has 3 and 4 positions"):
        filling.value("x", [torch.tensor([[1, 2, 3]]), ids(4)], [mask, None])
    assert filling.found == {}


@pytest.mark.parametrize("pad", ["<pad>", float("nan"), True, {"input_ids": None}, [0]])
def test_a_pad_that_is_no_number_is_refused_at_construction(pad: Any) -> None:
    with pytest.raises(ValueError, match=r"pad=.*: give a number, or a dict"):
        Sifter(nn.Linear(2, 2), pad=pad)


def test_a_value_that_a_member_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"pad=-1.5: input_ids holds whole numbers"):
        Filling(-1.5).value("input_ids", [ids(2), ids(3)], [])
    flags = [ids(2).bool(), ids(3).bool()]
    with pytest.raises(ValueError, match=r"pad=0: padding_mask holds True and False"):
        Filling(0).value("padding_mask", flags, [])
    assert Filling({"padding_mask": 1}).value("padding_mask", flags, []) == 1


def test_a_key_that_does_not_help_is_shown() -> None:
    with pytest.raises(ValueError, match=r"nor in pad=\{'inputs': 49\}: pass pad=\{'input_ids'"):
        Filling({"inputs": 49}).value("input_ids", [ids(2), ids(3)], [None, None])
