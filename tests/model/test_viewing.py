"""Views: less of each sample, for every layout of a batch that is known."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
import transformers as hf

from sifting import Sifter
from sifting.model.call import Call
from sifting.model.parts import Part
from sifting.model.viewing import View, check_seen
from tests.helpers.models import SMALL, token_batch


def test_every_member_of_a_sequence_is_cut() -> None:
    batch = {
        **token_batch(length=10),
        "pairs": torch.ones(6, 1, 10, 10),
        "embeds": torch.zeros(6, 10, 4),
        "next_sentence_label": torch.zeros(6),
        "names": ["a"] * 6,
    }
    seen = View((2, 6))(Call(), batch)
    assert torch.equal(seen["input_ids"], batch["input_ids"][:, 2:6])
    assert torch.equal(seen["labels"], batch["labels"][:, 2:6])
    assert seen["pairs"].shape == (6, 1, 4, 4)
    assert seen["embeds"].shape == (6, 4, 4)
    assert seen["next_sentence_label"] is batch["next_sentence_label"]
    assert seen["names"] == batch["names"]
    assert batch["input_ids"].shape == (6, 10)  # the user's own is as it was


@pytest.mark.parametrize("shape", [(6, 1, 10, 10), (6, 1, 1, 10), (6, 10)])
def test_attention_masks_of_every_shape_are_cut(shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL)).eval()
    batch = {**token_batch(length=10), "attention_mask": torch.rand(shape) > 0.2}
    batch["attention_mask"][..., 2:4] = True
    place = tuple(slice(2, 6) if n == 10 else slice(None) for n in shape)
    short = {name: batch[name][:, 2:6].contiguous() for name in ("input_ids", "labels")}
    short["attention_mask"] = batch["attention_mask"][place]
    viewed = Sifter(model, exit=1, score="loss", keep=0.5, view=(2, 6)).score(batch)
    assert torch.equal(viewed, Sifter(model, exit=1, score="loss", keep=0.5).score(short))


def test_a_mask_of_pairs_without_heads_is_cut_along_both() -> None:
    batch = {**token_batch(length=10), "attention_mask": torch.ones(6, 10, 10).tril()}
    seen = View((2, 6))(Call(), batch)["attention_mask"]
    assert torch.equal(seen, torch.ones(6, 4, 4).tril())


def test_a_batch_that_is_no_longer_is_left_alone() -> None:
    batch = token_batch(length=10)
    assert View(10)(Call(), batch) is batch
    images = (torch.zeros(4, 3, 16, 16), torch.zeros(4).long())
    assert View(16)(Call(), images)[0] is images[0]


def test_images_are_averaged_in_any_layout() -> None:
    image = torch.arange(64.0).view(1, 1, 8, 8).repeat(4, 3, 1, 1)
    labels = torch.zeros(4).long()
    small = View(4)(Call(), (image, labels))[0]
    assert small.shape == (4, 3, 4, 4)
    assert torch.equal(small[0, 0, 0, :2], torch.tensor([4.5, 6.5]))
    last = View(4)(Call(), (image.permute(0, 2, 3, 1), labels))[0]
    assert torch.equal(last.permute(0, 3, 1, 2), small)
    whole = View(4)(Call(), {"pixel_values": image.to(torch.uint8), "labels": labels})
    assert whole["pixel_values"].dtype == torch.uint8


def test_pairs_and_named_tuples_keep_their_type() -> None:
    Pair = namedtuple("Pair", "tokens labels")
    seen = View(3)(Call(), Pair(torch.ones(4, 8).long(), torch.zeros(4).long()))
    assert type(seen) is Pair
    assert seen.tokens.shape == (4, 3)


@pytest.mark.parametrize(
    ("view", "error", "words"),
    [
        (0, ValueError, "view=0 shows nothing"),
        (-4, ValueError, "view=-4 shows nothing"),
        ((5, 5), ValueError, r"view=\(5, 5\) is not a range"),
        (0.5, TypeError, "view=0.5: give a number"),
        (True, TypeError, "view=True: give a number"),
    ],
)
def test_what_is_no_view_is_refused_by_its_value(
    view: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        View(view)


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ((torch.zeros(4, 12), torch.zeros(4).long()), "neither images .* nor tokens"),
        ((torch.zeros(4, 3, 8, 8), torch.zeros(4, 8, 8).long()), "are of each pixel"),
        (
            {"input_ids": torch.ones(2, 8).long(), "decoder_input_ids": torch.ones(2, 6).long()},
            "sequences of 6 and 8 tokens",
        ),
        (
            {"input_ids": torch.ones(2, 8).long(), "start_positions": torch.zeros(2).long()},
            "start_positions",
        ),
        (
            {"input_ids": torch.ones(1, 8).long(), "position_ids": torch.arange(4).repeat(2)[None]},
            "the batch is packed",
        ),
    ],
)
def test_batches_that_cannot_be_cut_are_refused(batch: Any, words: str) -> None:
    with pytest.raises(ValueError, match=f"view=4: .*{words}"):
        View(4)(Call(), batch)


def test_padding_on_the_left_is_refused() -> None:
    batch = token_batch(length=10)
    batch["attention_mask"][2, :7] = 0
    assert View(8)(Call(), batch)["input_ids"].shape == (6, 8)
    with pytest.raises(ValueError, match="view=6 shows nothing but padding of 1 of 6 sequences"):
        View(6)(Call(), batch)


def test_a_view_without_most_labels_is_refused() -> None:
    batch = token_batch(length=10)
    batch["labels"][:4, :5] = -100
    with pytest.raises(ValueError, match="view=5 shows no label of"):
        check_seen(View(5), Call(), batch, View(5)(Call(), batch))
    check_seen(View(9), Call(), batch, View(9)(Call(), batch))


def test_a_view_of_a_label_that_is_told_by_no_position_in_it_is_refused() -> None:
    batch, part = token_batch(length=10), Part("logits", "labels", "classes", shift=1)
    batch["labels"] = batch["input_ids"].clone()
    check_seen(View(2), Call(), batch, View(2)(Call(), batch), parts=[part])
    with pytest.raises(ValueError, match="view=1 shows no label of 6 of 6 samples"):
        check_seen(View(1), Call(), batch, View(1)(Call(), batch), parts=[part])
    answers = {**batch, "labels": batch["labels"].clone()}
    answers["labels"][:, 1:5] = -100
    answers["labels"][:, 6:] = -100
    with pytest.raises(ValueError, match=r"view=\(5, 9\) shows no label of 6 of 6 samples"):
        check_seen(View((5, 9)), Call(), answers, View((5, 9))(Call(), answers), parts=[part])


def test_a_function_must_keep_the_number_of_samples() -> None:
    batch = (torch.zeros(4, 12), torch.zeros(4).long())
    seen = View(lambda b: (b[0][:, :3], b[1]))(Call(), batch)
    assert seen[0].shape == (4, 3)
    with pytest.raises(ValueError, match=r"view= made 2 samples .* of 4"):
        View(lambda b: (b[0][:2], b[1][:2]))(Call(), batch)


def test_a_function_leaves_the_batch_that_is_trained_alone() -> None:
    batch = token_batch(length=10)

    def shorter(given: Any) -> Any:
        for name in given:
            given[name] = given[name][:, :4]
        return given

    assert View(shorter)(Call(), batch)["labels"].shape == (6, 4)
    assert {value.shape for value in batch.values()} == {(6, 10)}
    assert View(lambda given: given)(Call(), batch) is batch

    def blanked(given: Any) -> Any:
        given["input_ids"][:, 4:] = 0
        return given

    with pytest.raises(ValueError, match="view=blanked wrote into tensors of the batch"):
        View(blanked)(Call(), batch)


def test_a_function_must_return_a_batch_with_its_labels() -> None:
    pair = (torch.zeros(4, 12), torch.zeros(4).long())
    with pytest.raises(ValueError, match="view=<lambda> returned None"):
        View(lambda b: None)(Call(), pair)
    with pytest.raises(ValueError, match=r"view=<lambda> returned .*without the batch's labels"):
        View(lambda b: (b[0][:, :3],))(Call(), pair)
