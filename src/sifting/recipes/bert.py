"""`sift train bert`: pretraining BERT from scratch on sentence pairs with masked tokens.

WordPiece, 15 % of the tokens masked anew in every pass, half of the pairs with a random second
part; the loss is that of the masked tokens plus that of the next sentence. SIFT draws twice the
batch, scores it with the model's own head after the first block (`sift@3`: after the third), and
trains on the half with the highest loss or entropy. Accuracy is that of masked tokens of held-out
documents. The presets "paper", "small" and "smoke" differ only in numbers and in their text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from sifting.recipes.text.common import (
    DATA_SETTINGS,
    TextConfig,
    TextData,
    read_text,
    text_presets,
    text_problem,
)
from sifting.recipes.text.pairs import IGNORED, Pairs
from sifting.training.problem import Problem
from sifting.training.recipe import Recipe, update_size

FIXED = 20_24  # seed of the pairs and masks that are evaluated, the same in all runs


@dataclass(frozen=True)
class Config(TextConfig):
    """Settings of one run; the defaults are the paper's."""

    masked: float = 0.15
    """Share of the tokens to predict."""


PRESETS = text_presets(Config)


def build_model(config: Config, vocabulary: int) -> nn.Module:
    """`BertForPreTraining` of the config's size."""
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(config.seed)
    make: Any = BertForPreTraining
    model: nn.Module = make(
        BertConfig(
            vocab_size=vocabulary,
            hidden_size=config.hidden,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            intermediate_size=config.inner,
            initializer_range=config.init,
            hidden_act="gelu",
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.dropout,
            max_position_embeddings=config.length,
        )
    )
    return model


def evaluate(model: nn.Module, pairs: Pairs, *, count: int, batch: int) -> dict[str, float]:
    """Accuracy of masked tokens and of the next sentence, and the loss, on fixed pairs.

    Args:
        model: `BertForPreTraining`; its head runs only where labels are.
        pairs: held out.
        count: pairs to take, at most.
        batch: pairs at once.
    """
    device = next(model.parameters()).device
    trunk, head = model.get_submodule("bert"), model.get_submodule("cls")
    # spread over all held-out documents
    indices = np.unique(np.linspace(0, len(pairs) - 1, min(count, len(pairs))).astype(np.int64))
    sums = {"tokens": 0, "right": 0, "next_right": 0, "loss": 0.0, "next_loss": 0.0}
    model.eval()
    with torch.no_grad():
        for start in range(0, len(indices), batch):
            made = pairs.batch(indices[start : start + batch], seed=FIXED)
            made = {k: v.to(device) for k, v in made.items() if k != "index"}
            labels_BL, next_B = made.pop("labels"), made.pop("next_sentence_label")
            hidden_BLH, pooled_BH = trunk(**made, return_dict=False)[:2]
            chosen_BL = labels_BL != IGNORED
            logits_MV, next_B2 = head(hidden_BLH[chosen_BL], pooled_BH)
            labels_M = labels_BL[chosen_BL]
            sums["tokens"] += len(labels_M)
            sums["right"] += int((logits_MV.argmax(dim=1) == labels_M).sum())
            sums["loss"] += float(F.cross_entropy(logits_MV.float(), labels_M, reduction="sum"))
            sums["next_right"] += int((next_B2.argmax(dim=1) == next_B).sum())
            sums["next_loss"] += float(F.cross_entropy(next_B2.float(), next_B, reduction="sum"))
    masked_loss, next_loss = sums["loss"] / sums["tokens"], sums["next_loss"] / len(indices)
    return {
        "accuracy": sums["right"] / sums["tokens"],
        "next_accuracy": sums["next_right"] / len(indices),
        "dev_loss": masked_loss + next_loss,
        "masked_loss": masked_loss,
    }


def problem(config: Config, data: TextData) -> Problem:
    """BERT on sentence pairs of a corpus."""

    def pairs(documents: Any) -> Pairs:
        return Pairs(
            data.tokens, documents, data.vocabulary, length=config.length, masked=config.masked
        )

    train, dev = pairs(data.train), pairs(data.dev)
    return text_problem(
        config,
        build_model(config, len(data.vocabulary)),
        train,
        lambda model: evaluate(model, dev, count=config.dev_sequences, batch=2 * config.batch),
    )


def updates(config: Config, data: TextData) -> int:
    """Updates of one pass by the baseline."""
    pairs = Pairs(data.tokens, data.train, data.vocabulary, length=config.length)
    return max(1, len(pairs) // update_size(config))


RECIPE: Recipe[Config, TextData] = Recipe(
    name="bert",
    about=str(__doc__),
    presets=PRESETS,
    read=lambda config: read_text(config, "wordpiece"),
    problem=problem,
    updates=updates,
    data_settings=DATA_SETTINGS,
)
