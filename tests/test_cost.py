"""The cost model against torch's own FLOP counter and what autograd really keeps."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from sifting import Sifter, cost
from sifting.cost import memory
from sifting.model import parts

transformers = pytest.importorskip("transformers")

BERT = cost.Shape(
    layers=4,
    hidden=64,
    intermediate=256,
    vocab=500,
    heads=4,
    length=32,
    pooled_classes=2,
)
LLAMA = cost.Shape(
    layers=3,
    hidden=64,
    intermediate=160,
    vocab=300,
    heads=4,
    length=32,
    head="lm",
    gated=True,
    key_value_heads=2,
)


def bert(shape: cost.Shape, *, dropout: float = 0.1, attention: str = "eager"):
    # eager: the counter does not know the fused attention of CPUs
    config = transformers.BertConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocab,
        num_attention_heads=shape.heads,
        max_position_embeddings=shape.length,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
    )
    config._attn_implementation = attention
    return transformers.BertForPreTraining(config)


def llama(shape: cost.Shape):
    config = transformers.LlamaConfig(
        num_hidden_layers=shape.layers,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        vocab_size=shape.vocab,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.key_value_heads,
        max_position_embeddings=shape.length,
    )
    config._attn_implementation = "eager"
    return transformers.LlamaForCausalLM(config)


def bert_batch(shape: cost.Shape, size: int, every: int = 8) -> dict[str, torch.Tensor]:
    ids = torch.randint(0, shape.vocab, (size, shape.length))
    labels = torch.full_like(ids, -100)
    labels[:, ::every] = ids[:, ::every]
    return {"input_ids": ids, "labels": labels, "next_sentence_label": ids[:, 0] % 2}


def counted(work) -> int:
    with FlopCounterMode(display=False) as counter:
        work()
    return counter.get_total_flops()


def test_update_flops_of_bert_are_what_torch_counts():
    model, batch = bert(BERT), bert_batch(BERT, 6)
    found = counted(lambda: model(**batch).loss.backward())
    assert cost.update_flops(BERT, 6) == pytest.approx(found, rel=0.01)


def test_frozen_blocks_have_no_backward_and_reused_ones_no_forward():
    model, batch = bert(BERT, dropout=0.0).train(), bert_batch(BERT, 8)
    model.bert.embeddings.requires_grad_(False)
    for block in model.bert.encoder.layer[:2]:
        block.requires_grad_(False)
    # the head is trained, and shares no weight with the embedding
    model.cls.predictions.decoder.weight = torch.nn.Parameter(
        model.cls.predictions.decoder.weight.detach().clone()
    )
    sifter = Sifter(model, exit=2, score="loss", keep=0.5, reuse=True, audit_every=0, draws="batch")
    plain = cost.update_flops(BERT, 4, frozen=2)
    shorter = cost.update_flops(BERT, 4, frozen=2, reused=2)
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
    estimate = cost.scoring_flops(BERT, 6, exit=exit, labelled=1 / 8)
    assert estimate == pytest.approx(found, rel=0.01)


def test_ratio_is_what_torch_counts_for_a_selecting_step():
    model = bert(BERT)
    sifter = Sifter(model, exit=1, score="loss", keep=0.25, audit_every=0)
    batch = bert_batch(BERT, 8)
    kept = sifter.select(batch).batch
    scoring = counted(lambda: sifter.select(batch))
    update = counted(lambda: model(**kept).loss.backward())
    ratio = cost.scoring_ratio(BERT, exit=1, keep=0.25, labelled=1 / 8)
    assert ratio == pytest.approx(scoring / update, rel=0.01)


def test_flops_of_a_gated_decoder_with_grouped_keys_are_what_torch_counts():
    model = llama(LLAMA)
    ids = torch.randint(0, LLAMA.vocab, (4, LLAMA.length))
    batch = {"input_ids": ids, "labels": ids}
    sifter = Sifter(model, exit=2, score="loss")
    sifter.score(batch)
    scoring = counted(lambda: sifter.score(batch))
    predicting = (LLAMA.length - 1) / LLAMA.length  # the last position has nothing to predict
    assert cost.scoring_flops(LLAMA, 4, exit=2, labelled=predicting) == pytest.approx(
        scoring, rel=0.01
    )
    update = counted(lambda: model(**batch, use_cache=False).loss.backward())
    # the rotary table's own product is the rest
    assert cost.update_flops(LLAMA, 4) == pytest.approx(update, rel=0.01)


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
    flops = cost.forward_flops(shape)
    assert flops.embedding == 2 * 16 * 24 * 64
    assert 2 * flops.total == pytest.approx(found, rel=0.01)


def test_forward_flops_split_and_scale():
    whole = cost.forward_flops(BERT)
    half = cost.forward_flops(BERT, exit=2, labelled=0.5)
    assert whole.embedding == 0
    assert half.blocks == whole.blocks / 2
    pooled = 2 * (64 * 64 + 64 * 2)  # runs whatever the share of labels
    assert half.head - pooled == pytest.approx((whole.head - pooled) / 2)
    assert cost.forward_flops(BERT, exit=None) == cost.forward_flops(BERT, exit=4) == whole


def test_parameters_of_bert_base_are_its_own():
    with torch.device("meta"):
        model = transformers.BertForPreTraining(transformers.BertConfig())
    assert cost.BERT_BASE.parameters == pytest.approx(model.num_parameters(), rel=0.005)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_update_bytes_count_what_autograd_keeps_of_a_block(dropout):
    def kept(layers: int) -> int:
        shape = replace(BERT, layers=layers)
        model = bert(shape, dropout=dropout, attention="sdpa").train()
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

    estimate = [cost.update_bytes(replace(BERT, layers=n), 4, dropout=dropout > 0) for n in (3, 4)]
    assert estimate[1] - estimate[0] == pytest.approx(kept(4) - kept(3), rel=0.02)


def test_chunk_is_the_one_in_use():
    assert (cost.CHUNK, memory.ROWS) == (parts.CHUNK, parts.ROWS)


def test_scoring_bytes_do_not_grow_with_the_vocabulary_beyond_two_chunks():
    shape = replace(BERT, vocab=30522, length=512)
    wide = replace(shape, vocab=250_000)
    grown = cost.scoring_bytes(wide, 64) - cost.scoring_bytes(shape, 64)
    assert grown <= 4 * 2 * memory.ROWS * 250_000
    assert cost.scoring_bytes(shape, 64) < 64 * 512 * 30522 * 4 / 10


@pytest.mark.parametrize(
    ("score", "ratios"),
    [
        ("loss", [0.072, 0.100, 0.126, 0.221, 0.385]),
        ("entropy", [0.078, 0.104, 0.132, 0.224, 0.386]),
    ],
)
def test_paper_ratios(score, ratios):
    assert [round(cost.paper_ratio(k, score=score), 3) for k in (1, 2, 3, 6, 12)] == ratios


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: replace(BERT, layers=0), "layers=0: give a whole number of at least 1"),
        (lambda: replace(BERT, vocab=2.5), "vocab=2.5"),
        (lambda: replace(BERT, heads=True), "heads=True"),
        (lambda: replace(BERT, heads=5), "hidden=64 does not divide into heads=5.*head_width="),
        (
            lambda: replace(BERT, key_value_heads=3),
            "heads=4 is not a multiple of key_value_heads=3",
        ),
        (lambda: replace(BERT, head="crf"), "head='crf' is unknown: choose 'mlm'"),
        (lambda: replace(BERT, pooled_classes=-1), "pooled_classes=-1"),
        (lambda: cost.scoring_ratio(BERT, exit=5), "exit=5 .*choose 1 to 4, or None"),
        (lambda: cost.scoring_ratio(BERT, exit=0), "exit=0 "),
        (lambda: cost.scoring_ratio(BERT, keep=0), r"keep=0 is not a share: give one in \(0, 1\]"),
        (lambda: cost.scoring_ratio(BERT, keep=float("nan")), "keep=nan"),
        (lambda: cost.scoring_ratio(BERT, labelled=15), r"labelled=15 .*\[0, 1\]"),
        (lambda: cost.update_flops(BERT, 0), "sequences=0"),
        (lambda: cost.scoring_flops(BERT, -3), "candidates=-3"),
        (lambda: cost.scoring_bytes(BERT, 2, chunk=0), "chunk=0"),
        (lambda: cost.paper_ratio(4), "exit=4: the paper timed exits 1, 2, 3, 6, 12"),
        (
            lambda: cost.paper_ratio(1, score="margin"),
            "score='margin': the paper timed loss, entropy",
        ),
    ],
)
def test_mistakes_are_named_with_their_remedy(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_cost_needs_nothing_but_python():
    code = "import sys, sifting.cost; assert not {'torch', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
