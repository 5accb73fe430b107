"""FLOPs by the cost model against those that torch's own counter finds."""

from __future__ import annotations

import pytest
import torch

from sifting import Sifter, cost
from sifting.cost.flops import (
    forward_flops,
    paper_ratio,
    scoring_flops,
    scoring_ratio,
    update_flops,
)
from tests.helpers.shapes import BERT, LLAMA, bert, bert_batch, counted, llama

transformers = pytest.importorskip("transformers")


def test_update_flops_of_bert_are_what_torch_counts():
    model, batch = bert(BERT), bert_batch(BERT, 6)
    found = counted(lambda: model(**batch).loss.backward())
    assert update_flops(BERT, 6) == pytest.approx(found, rel=0.01)


@pytest.mark.parametrize("exit", [2, "last"])
def test_frozen_blocks_have_no_backward_and_reused_ones_no_forward(exit):
    model, batch = bert(BERT, dropout=0.0).train(), bert_batch(BERT, 8)
    model.bert.embeddings.requires_grad_(False)
    for block in model.bert.encoder.layer[:2]:
        block.requires_grad_(False)
    # the head is trained, and shares no weight with the embedding
    model.cls.predictions.decoder.weight = torch.nn.Parameter(
        model.cls.predictions.decoder.weight.detach().clone()
    )
    sifter = Sifter(
        model, exit=exit, score="loss", keep=0.5, reuse=True, audit_every=0, draws="batch"
    )
    plain = update_flops(BERT, 4, frozen=2)
    shorter = update_flops(BERT, 4, frozen=2, reused=2)
    found = []
    for kept in sifter([batch] * 2):
        found.append(counted(lambda kept=kept: model(**kept).loss.backward()))
    half = {name: value[:4] for name, value in batch.items()}
    # the first block that is trained gives no gradient to what is before it
    assert counted(lambda: model(**half).loss.backward()) == pytest.approx(plain, rel=0.05)
    assert found[-1] == pytest.approx(shorter, rel=0.06)
    assert shorter < 0.9 * plain


@pytest.mark.parametrize("exit", [1, 2, 4])
@pytest.mark.parametrize("score", ["loss", "entropy"])
def test_scoring_flops_of_bert_are_what_torch_counts(exit, score):
    sifter = Sifter(bert(BERT), exit=exit, score=score)
    batch = bert_batch(BERT, 6)
    sifter.score(batch)  # the first batch also pays for finding the head
    found = counted(lambda: sifter.score(batch))
    estimate = scoring_flops(BERT, 6, exit=exit, labelled=1 / 8)
    assert estimate == pytest.approx(found, rel=0.01)


def test_ratio_is_what_torch_counts_for_a_selecting_step():
    model = bert(BERT)
    sifter = Sifter(model, exit=1, score="loss", keep=0.25, audit_every=0)
    batch = bert_batch(BERT, 8)
    kept = sifter.select(batch).batch
    scoring = counted(lambda: sifter.select(batch))
    update = counted(lambda: model(**kept).loss.backward())
    ratio = scoring_ratio(BERT, exit=1, keep=0.25, labelled=1 / 8)
    assert ratio == pytest.approx(scoring / update, rel=0.01)


def test_flops_of_a_gated_decoder_with_grouped_keys_are_what_torch_counts():
    model = llama(LLAMA)
    ids = torch.randint(0, LLAMA.vocab, (4, LLAMA.length))
    batch = {"input_ids": ids, "labels": ids}
    sifter = Sifter(model, exit=2, score="loss")
    sifter.score(batch)
    scoring = counted(lambda: sifter.score(batch))
    predicting = (LLAMA.length - 1) / LLAMA.length  # the last position has nothing to predict
    assert scoring_flops(LLAMA, 4, exit=2, labelled=predicting) == pytest.approx(scoring, rel=0.01)
    update = counted(lambda: model(**batch, use_cache=False).loss.backward())
    # the rotary table's own product is the rest
    assert update_flops(LLAMA, 4) == pytest.approx(update, rel=0.01)


def test_flops_of_a_narrow_embedding_are_what_torch_counts():
    shape = cost.Shape(
        layers=3, hidden=64, intermediate=128, vocab=300, heads=4, length=16, embedding=24
    )
    config = transformers.AlbertConfig(
        num_hidden_layers=3,
        hidden_size=64,
        intermediate_size=128,
        vocab_size=300,
        num_attention_heads=4,
        embedding_size=24,
        max_position_embeddings=16,
    )
    config._attn_implementation = "eager"
    model = transformers.AlbertForMaskedLM(config)
    found = counted(lambda: model(torch.randint(0, 300, (2, 16))))
    flops = forward_flops(shape)
    assert flops.embedding == 2 * 16 * 24 * 64
    assert 2 * flops.total == pytest.approx(found, rel=0.01)


def test_forward_flops_split_and_scale():
    whole = forward_flops(BERT)
    half = forward_flops(BERT, exit=2, labelled=0.5)
    assert whole.embedding == 0
    assert half.blocks == whole.blocks / 2
    pooled = 2 * (64 * 64 + 64 * 2)  # runs whatever the share of labels
    assert half.head - pooled == pytest.approx((whole.head - pooled) / 2)
    assert forward_flops(BERT, exit=None) == forward_flops(BERT, exit=4) == whole


@pytest.mark.parametrize(
    ("score", "ratios"),
    [
        ("loss", [0.072, 0.100, 0.126, 0.221, 0.385]),
        ("entropy", [0.078, 0.104, 0.132, 0.224, 0.386]),
    ],
)
def test_paper_ratios(score, ratios):
    assert [round(paper_ratio(k, score=score), 3) for k in (1, 2, 3, 6, 12)] == ratios


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: scoring_ratio(BERT, exit=5), "exit=5 .*choose 1 to 4, or None"),
        (lambda: scoring_ratio(BERT, exit=0), "exit=0 "),
        (lambda: scoring_ratio(BERT, keep=0), r"keep=0 is not a share: give one in \(0, 1\]"),
        (lambda: scoring_ratio(BERT, keep=float("nan")), "keep=nan"),
        (lambda: scoring_ratio(BERT, labelled=15), r"labelled=15 .*\[0, 1\]"),
        (lambda: update_flops(BERT, 0), "sequences=0"),
        (lambda: scoring_flops(BERT, -3), "candidates=-3"),
        (lambda: paper_ratio(4), "exit=4: the paper timed exits 1, 2, 3, 6, 12"),
        (
            lambda: paper_ratio(1, score="margin"),
            "score='margin': the paper timed loss, entropy",
        ),
    ],
)
def test_mistakes_are_named_with_their_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call()
