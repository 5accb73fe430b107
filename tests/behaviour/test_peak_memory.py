"""Scoring never holds the logits of a whole batch, whatever the score and the model's head."""

from __future__ import annotations

import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from sifting import Sifter
from sifting.model import parts

transformers = pytest.importorskip("transformers")

VOCAB = 30522
SIZE, LENGTH = 64, 32
LABELLED = 5  # positions of a sequence: 15 %


@pytest.fixture(autouse=True)
def _small_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the usual chunk, so that a quarter of the logits shows the same."""
    monkeypatch.setattr(parts, "CHUNK", 2**21)
    monkeypatch.setattr(parts, "ROWS", 1)


class Largest(TorchDispatchMode):
    """Records the most entries that a tensor of logits, made by any operation, has in memory."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.own = {p.untyped_storage().data_ptr() for p in model.parameters()}
        self.entries = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        output = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            if isinstance(leaf, torch.Tensor) and VOCAB in leaf.shape:
                storage = leaf.untyped_storage()  # a stand-in has the shape but not the memory
                if storage.data_ptr() not in self.own:
                    self.entries = max(self.entries, storage.nbytes() // leaf.element_size())
        return output


def bert():
    config = transformers.BertConfig(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=LENGTH,
    )
    return transformers.BertForPreTraining(config)


def candidates() -> dict[str, torch.Tensor]:
    ids = torch.randint(0, VOCAB, (SIZE, LENGTH), generator=torch.Generator().manual_seed(0))
    labels = torch.full_like(ids, -100)
    labels[:, :LABELLED] = ids[:, :LABELLED]
    return {"input_ids": ids, "labels": labels, "next_sentence_label": ids[:, 0] % 2}


def test_even_the_labelled_logits_would_be_too_many_to_hold():
    assert SIZE * LABELLED * VOCAB > 2 * parts.CHUNK


def test_the_recorder_sees_logits_that_are_held():
    model = bert()
    batch = candidates()
    with torch.no_grad(), Largest(model) as largest:
        model(batch["input_ids"][:4])
    assert largest.entries == 4 * LENGTH * VOCAB


@pytest.mark.parametrize("score", ["loss", "entropy", "margin", "grad_norm"])
def test_scoring_holds_no_more_than_a_chunk_of_logits(score):
    model = bert()
    sifter = Sifter(model, exit=1, score=score)
    with Largest(model) as largest:
        scores = sifter.score(candidates())  # the first batch, in which the head is found, too
    assert scores.shape == (SIZE,)
    assert 0 < largest.entries <= parts.CHUNK


def test_an_audit_holds_no_more_than_a_chunk_of_logits():
    model = bert()
    sifter = Sifter(model, exit=1, score="loss", audit_every=1)
    with Largest(model) as largest:
        sifter.select(candidates())
    assert sifter.stats()["audits"] == 1
    assert 0 < largest.entries <= parts.CHUNK


def test_a_decoder_with_labels_everywhere_holds_no_more_than_a_chunk_of_logits():
    config = transformers.LlamaConfig(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=2,
        vocab_size=VOCAB,
        max_position_embeddings=LENGTH,
    )
    model = transformers.LlamaForCausalLM(config)
    ids = candidates()["input_ids"][:8, :32]
    sifter = Sifter(model, exit=1, score="loss")
    with Largest(model) as largest:
        sifter.score({"input_ids": ids, "labels": ids})
    assert 8 * 31 * VOCAB > 3 * parts.CHUNK
    assert 0 < largest.entries <= parts.CHUNK


def test_finding_the_head_does_not_hold_the_blocks_activations():
    model = bert()
    block, head = model.bert.encoder.layer[0].intermediate, model.cls.predictions.decoder
    made: list[weakref.ref[torch.Tensor]] = []
    alive_when_checked: list[bool] = []
    block.register_forward_hook(lambda module, args, output: made.append(weakref.ref(output)))

    def note(module: nn.Module, args: tuple[torch.Tensor], output: torch.Tensor) -> None:
        if args[0].ndim == 2:  # single positions: the check that the head works by position
            alive_when_checked.append(any(ref() is not None for ref in made))

    head.register_forward_hook(note)
    Sifter(model, exit=1, score="loss").score(candidates())
    assert alive_when_checked
    assert made
    assert not any(alive_when_checked)


def test_logits_that_the_model_caps_are_not_held_either():
    config = transformers.Gemma2Config(
        num_hidden_layers=2,
        hidden_size=64,
        intermediate_size=128,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        vocab_size=VOCAB,
        final_logit_softcapping=30.0,
        pad_token_id=0,
    )
    model = transformers.Gemma2ForCausalLM(config)
    batch = candidates()
    batch = {"input_ids": batch["input_ids"][:16], "labels": batch["labels"][:16]}
    sifter = Sifter(model, exit=1, score="loss")
    sifter.score(batch)
    with Largest(model) as largest:
        sifter.score(batch)
    assert 0 < largest.entries <= 16 * LABELLED * VOCAB
    assert "lm_head only where labels are" in repr(sifter)


def test_of_many_words_some_rows_are_taken_at_a_time_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A product of a few rows with a large matrix takes as long as one of many."""
    monkeypatch.setattr(parts, "ROWS", 256)
    words, sizes = 2**17, list[int]()

    def head(inputs_NH: Tensor) -> Tensor:
        sizes.append(len(inputs_NH))
        return inputs_NH.new_zeros(1).expand(len(inputs_NH), words)

    inputs_BTH, mask_BT = torch.zeros(2, 300, 4), torch.ones(2, 300, dtype=torch.bool)
    rows = parts.Rows(inputs_BTH, mask_BT, mask_BT.long(), head)
    assert sum(len(logits) for logits, _ in rows.chunks(words)) == 600
    assert sizes == [256, 256, 88]
