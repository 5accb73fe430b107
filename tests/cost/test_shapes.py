"""Shapes of transformers: their parameters, and configs they are read from."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from sifting.cost.shapes import BERT_BASE, shape_of
from tests.helpers.shapes import BERT

transformers = pytest.importorskip("transformers")


def test_parameters_of_bert_base_are_its_own():
    with torch.device("meta"):
        model = transformers.BertForPreTraining(transformers.BertConfig())
    assert BERT_BASE.parameters == pytest.approx(model.num_parameters(), rel=0.005)


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
    ],
)
def test_sizes_that_cannot_be_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("make", ["BertForPreTraining", "GPT2LMHeadModel", "LlamaForCausalLM"])
def test_shapes_are_read_from_configs_as_transformers_writes_them(make, tmp_path):
    transformers = pytest.importorskip("transformers")
    model_class = getattr(transformers, make)
    config = model_class.config_class()
    config.architectures = [make]
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    shape = shape_of(saved, length=config.max_position_embeddings)
    with torch.device("meta"):
        model = model_class(config)
    untied = config.tie_word_embeddings is False
    extra = config.vocab_size * config.hidden_size if untied else 0
    positions = shape.length * shape.hidden if make.startswith("Llama") else 0
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert shape.parameters + extra - positions == pytest.approx(counted, rel=0.005)
