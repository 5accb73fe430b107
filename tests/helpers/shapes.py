"""Transformers by their shape, for tests of what they cost."""

from __future__ import annotations

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from sifting import cost

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
