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
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import nn

from sifting.recipes.text.blocks import Blocks
from sifting.recipes.text.data import TextData, read_text
from sifting.recipes.text.presets import DATA_SETTINGS, LEARNING, TextConfig, text_presets
from sifting.recipes.text.problem import text_problem
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
    metric: Literal["accuracy", "nats_per_byte"] = "accuracy"
    """What counts: the accuracy of the next token, or the loss by byte, whatever the vocabulary."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape not in ("gpt2", "llama"):
            raise ValueError(f"shape={self.shape!r}: choose 'gpt2' or 'llama'")
        if self.metric not in ("accuracy", "nats_per_byte"):
            raise ValueError(f"metric={self.metric!r}: choose 'accuracy' or 'nats_per_byte'")


PRESETS = {
    **text_presets(Config, small={"dev_sequences": 256}),
    "learn": Config(**LEARNING, shape="llama", metric="nats_per_byte"),
}


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


def evaluate(
    model: nn.Module, blocks: Blocks, bytes_V: npt.NDArray[np.int64], *, count: int, batch: int
) -> dict[str, float]:
    """How well the next token is predicted, on held-out blocks.

    "nats_per_byte" can be compared between vocabularies; "frequency_nats_per_byte" is that of a
    model that knows how frequent each of these tokens is, and nothing else.

    Args:
        model: of `build_model`.
        blocks: held out.
        bytes_V: of each token.
        count: blocks to take, at most.
        batch: blocks at once.
    """
    device = next(model.parameters()).device
    indices = np.unique(np.linspace(0, len(blocks) - 1, min(count, len(blocks))).astype(np.int64))
    counts_V, right, loss = np.zeros(len(bytes_V), dtype=np.int64), 0, 0.0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(indices), batch):
            ids_BL = blocks.batch(indices[start : start + batch], seed=0)["input_ids"].to(device)
            logits_TV = model(input_ids=ids_BL).logits[:, :-1].flatten(0, 1).float()
            next_T = ids_BL[:, 1:].flatten()
            counts_V += np.bincount(next_T.cpu().numpy(), minlength=len(counts_V))
            right += int((logits_TV.argmax(dim=1) == next_T).sum())
            loss += float(F.cross_entropy(logits_TV, next_T, reduction="sum"))
    tokens, size = int(counts_V.sum()), int(counts_V @ bytes_V)
    met = counts_V[counts_V > 0]
    return {
        "accuracy": right / tokens,
        "dev_loss": loss / tokens,
        "nats_per_byte": loss / size,
        "frequency_nats_per_byte": -float(met @ np.log(met / tokens)) / size,
    }


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
        lambda model: evaluate(
            model,
            dev,
            data.vocabulary.bytes_V,
            count=config.dev_sequences,
            batch=config.batch,
        ),
        shift=1,
        metric=config.metric,
        lower_is_better=config.metric == "nats_per_byte",
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
