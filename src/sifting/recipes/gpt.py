"""`sift train gpt`: a causal language model, in the shape of GPT-2 or of Llama, from scratch.

Byte-level BPE; documents joined by an end token and cut into blocks. Arms, exits and scores are
those of the other recipes: `sift@3` scores with the model's own head after the third block.
Accuracy is that of the next token on held-out documents. Not in the paper: its BERT settings are
kept where they have a meaning here, so that the two can be compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from sifting.recipes.text.blocks import Blocks
from sifting.recipes.text.common import (
    DATA_SETTINGS,
    TextConfig,
    TextData,
    read_text,
    text_presets,
    text_problem,
)
from sifting.training.problem import Problem
from sifting.training.recipe import Recipe, update_size


@dataclass(frozen=True)
class Config(TextConfig):
    """Settings of one run; the defaults are those of BERT-base."""

    vocabulary: str = "gpt2"
    """Hub name, tokenizer.json or a folder with one; "train" makes one from the corpus."""
    vocabulary_size: int = 50257
    """Tokens of a vocabulary that is made."""
    shape: Literal["gpt2", "llama"] = "gpt2"
    """Which architecture of `transformers`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape not in ("gpt2", "llama"):
            raise ValueError(f"shape={self.shape!r}: choose 'gpt2' or 'llama'")


PRESETS = text_presets(Config, small={"dev_sequences": 256})


def build_model(config: Config, vocabulary: int, end: int) -> nn.Module:
    """A causal language model of the config's size; input and output embeddings are one."""
    torch.manual_seed(config.seed)
    common: dict[str, Any] = {
        "vocab_size": vocabulary,
        "bos_token_id": end,
        "eos_token_id": end,
        "initializer_range": config.init,
    }
    if config.shape == "llama":
        from transformers import LlamaConfig, LlamaForCausalLM

        llama: Any = LlamaForCausalLM
        made: nn.Module = llama(
            LlamaConfig(
                hidden_size=config.hidden,
                intermediate_size=config.inner,
                num_hidden_layers=config.layers,
                num_attention_heads=config.heads,
                max_position_embeddings=config.length,
                attention_dropout=config.dropout,
                tie_word_embeddings=True,
                **common,
            )
        )
        return made
    from transformers import GPT2Config, GPT2LMHeadModel

    gpt2: Any = GPT2LMHeadModel
    model: Any = gpt2(
        GPT2Config(
            n_positions=config.length,
            n_embd=config.hidden,
            n_layer=config.layers,
            n_head=config.heads,
            n_inner=config.inner,
            resid_pdrop=config.dropout,
            embd_pdrop=config.dropout,
            attn_pdrop=config.dropout,
            **common,
        )
    )
    model.loss_type = "ForCausalLM"  # which it cannot tell from the name of its class
    return cast(nn.Module, model)


def evaluate(model: nn.Module, blocks: Blocks, *, count: int, batch: int) -> dict[str, float]:
    """Accuracy of the next token, and the loss, on held-out blocks."""
    device = next(model.parameters()).device
    indices = np.unique(np.linspace(0, len(blocks) - 1, min(count, len(blocks))).astype(np.int64))
    tokens, right, loss = 0, 0, 0.0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(indices), batch):
            ids_BL = blocks.batch(indices[start : start + batch], seed=0)["input_ids"].to(device)
            logits_TV = model(input_ids=ids_BL).logits[:, :-1].flatten(0, 1).float()
            next_T = ids_BL[:, 1:].flatten()
            tokens += len(next_T)
            right += int((logits_TV.argmax(dim=1) == next_T).sum())
            loss += float(F.cross_entropy(logits_TV, next_T, reduction="sum"))
    return {"accuracy": right / tokens, "dev_loss": loss / tokens}


def blocks(config: Config, data: TextData, documents: Any) -> Blocks:
    """Blocks of some documents."""
    return Blocks(data.tokens, documents, end=data.vocabulary.end, length=config.length)


def problem(config: Config, data: TextData) -> Problem:
    """A causal language model on blocks of a corpus."""
    dev = blocks(config, data, data.dev)
    return text_problem(
        config,
        build_model(config, len(data.vocabulary), data.vocabulary.end),
        blocks(config, data, data.train),
        lambda model: evaluate(model, dev, count=config.dev_sequences, batch=config.batch),
    )


RECIPE: Recipe[Config, TextData] = Recipe(
    name="gpt",
    about=str(__doc__),
    presets=PRESETS,
    read=lambda config: read_text(config, "bpe"),
    problem=problem,
    updates=lambda config, data: max(
        1, len(blocks(config, data, data.train)) // update_size(config)
    ),
    data_settings=DATA_SETTINGS,
)
