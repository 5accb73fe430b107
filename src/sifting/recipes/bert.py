"""`sift train bert`: pretraining BERT from scratch on sentence pairs with masked tokens.

WordPiece, 15 % of the tokens masked again in every pass, half of the pairs with a random second
part; the loss is that of the masked tokens plus that of the next sentence. SIFT draws twice the
batch, scores it with the model's own head after the first block (`sift@3`: after the third), and
trains on the half with the highest loss or entropy. Accuracy is that of masked tokens of held-out
documents. The presets "paper", "small" and "smoke" differ only in numbers and in their text;
"learn" is a ModernBERT on running text that learns language in minutes of one core, judged on
tokens behind [MASK] alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.recipes.text.data import TextData, read_text
from sifting.recipes.text.masking import IGNORED, Passages
from sifting.recipes.text.pairs import SentencePairs
from sifting.recipes.text.presets import DATA_SETTINGS, LEARNING, TextConfig, text_presets
from sifting.recipes.text.problem import text_problem
from sifting.training.problem import Problem
from sifting.training.recipe import Recipe, update_size

FIXED = 20_24  # seed of the pairs and masks that are evaluated, the same in all runs


@dataclass(frozen=True)
class Config(TextConfig):
    """Settings of one run; the defaults are the paper's."""

    masked: float = 0.15
    """Share of the tokens to predict."""
    shape: Literal["bert", "modernbert"] = "bert"
    """`BertForPreTraining` on sentence pairs, or `ModernBertForMaskedLM` on running text."""
    window: int = 16
    """Tokens that a local layer of "modernbert" looks at; every second layer looks at all."""
    metric: Literal["accuracy", "hidden_accuracy"] = "accuracy"
    """Which accuracy counts: that of all masked tokens, as in the paper, or of hidden ones alone."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shape not in ("bert", "modernbert"):
            raise ValueError(f"shape={self.shape!r}: choose 'bert' or 'modernbert'")
        if self.metric not in ("accuracy", "hidden_accuracy"):
            raise ValueError(f"metric={self.metric!r}: choose 'accuracy' or 'hidden_accuracy'")
        if self.window < 2 or self.window % 2:
            raise ValueError(f"window={self.window}: give an even number of at least 2")


PRESETS = {
    **text_presets(Config),
    "learn": Config(
        **LEARNING,
        masked=0.3,
        shape="modernbert",
        metric="hidden_accuracy",
    ),
}


def build_model(config: Config, vocabulary: int) -> nn.Module:
    """`BertForPreTraining` or `ModernBertForMaskedLM` of the config's size."""
    torch.manual_seed(config.seed)
    common: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": config.hidden,
        "num_hidden_layers": config.layers,
        "num_attention_heads": config.heads,
        "intermediate_size": config.inner,
        "initializer_range": config.init,
        "max_position_embeddings": config.length,
    }
    if config.shape == "modernbert":
        from transformers import ModernBertConfig, ModernBertForMaskedLM

        # whose defaults are of a larger vocabulary
        special: dict[str, Any] = {
            f"{name}_token_id": 0 for name in ("pad", "bos", "eos", "cls", "sep")
        }
        modern: Any = ModernBertForMaskedLM
        made: nn.Module = modern(
            ModernBertConfig(
                local_attention=config.window,
                embedding_dropout=config.dropout,
                attention_dropout=config.dropout,
                mlp_dropout=config.dropout,
                **{**common, **special, "global_attn_every_n_layers": 2},
            )
        )
        return made
    from transformers import BertConfig, BertForPreTraining

    make: Any = BertForPreTraining
    model: nn.Module = make(
        BertConfig(
            hidden_act="gelu",
            hidden_dropout_prob=config.dropout,
            attention_probs_dropout_prob=config.dropout,
            **common,
        )
    )
    return model


def examples(config: Config, data: TextData, documents: Any) -> SentencePairs | Passages:
    """What a model of the config's shape is trained on, of some documents."""
    kind = SentencePairs if config.shape == "bert" else Passages
    return kind(data.tokens, documents, data.vocabulary, length=config.length, masked=config.masked)


def evaluate(
    model: nn.Module, held_out: SentencePairs | Passages, *, count: int, batch: int
) -> dict[str, float]:
    """How well masked tokens are predicted, on fixed masks of held-out text.

    "accuracy" is that of all masked tokens, of which a tenth stand there to be copied;
    "hidden_accuracy" of those behind [MASK], and "hidden_commonest" what always guessing the
    commonest token would have there. Models of sentence pairs have "next_accuracy", too.

    Args:
        model: of `build_model`; its head runs only where labels are.
        held_out: what to predict.
        count: sequences to take, at most.
        batch: sequences at once.
    """
    device = next(model.parameters()).device
    # spread over all held-out documents
    indices = np.unique(
        np.linspace(0, len(held_out) - 1, min(count, len(held_out))).astype(np.int64)
    )
    right, hidden, labels, loss, next_right, next_loss = [], [], [], 0.0, 0, 0.0
    model.eval()
    with torch.no_grad():
        for start in range(0, len(indices), batch):
            made = held_out.batch(indices[start : start + batch], seed=FIXED)
            made = {k: v.to(device) for k, v in made.items() if k != "index"}
            labels_BL, next_B = made.pop("labels"), made.pop("next_sentence_label", None)
            chosen_BL = labels_BL != IGNORED
            logits_MV, next_B2 = _predictions(model, made, chosen_BL)
            labels_M = labels_BL[chosen_BL]
            right.append(logits_MV.argmax(dim=1) == labels_M)
            hidden.append(made["input_ids"][chosen_BL] == held_out.masking.mask)
            labels.append(labels_M)
            loss += float(F.cross_entropy(logits_MV.float(), labels_M, reduction="sum"))
            if next_B is not None and next_B2 is not None:
                next_right += int((next_B2.argmax(dim=1) == next_B).sum())
                next_loss += float(F.cross_entropy(next_B2.float(), next_B, reduction="sum"))
    right_T, hidden_T, labels_T = torch.cat(right), torch.cat(hidden), torch.cat(labels)
    masked_loss = loss / len(labels_T)
    metrics = {
        "accuracy": float(right_T.double().mean()),
        "hidden_accuracy": float(right_T[hidden_T].double().mean()),
        "hidden_commonest": int(labels_T[hidden_T].bincount().max()) / int(hidden_T.sum()),
        "dev_loss": masked_loss + next_loss / len(indices),
        "masked_loss": masked_loss,
    }
    if isinstance(held_out, SentencePairs):
        metrics["next_accuracy"] = next_right / len(indices)
    return metrics


def _predictions(
    model: nn.Module, inputs: dict[str, Tensor], chosen_BL: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Logits of the chosen tokens, and of the next sentence where the model has them."""
    if hasattr(model, "bert"):
        hidden_BLH, pooled_BH = model.get_submodule("bert")(**inputs, return_dict=False)[:2]
        logits_MV, next_B2 = model.get_submodule("cls")(hidden_BLH[chosen_BL], pooled_BH)
        return logits_MV, next_B2
    hidden_BLH = model.get_submodule("model")(**inputs).last_hidden_state
    head, decoder = model.get_submodule("head"), model.get_submodule("decoder")
    return decoder(head(hidden_BLH[chosen_BL])), None


def problem(config: Config, data: TextData) -> Problem:
    """Masked tokens of a corpus."""
    train, dev = examples(config, data, data.train), examples(config, data, data.dev)
    return text_problem(
        config,
        build_model(config, len(data.vocabulary)),
        train,
        lambda model: evaluate(model, dev, count=config.dev_sequences, batch=2 * config.batch),
        metric=config.metric,
    )


def updates(config: Config, data: TextData) -> int:
    """Updates of one pass by the baseline."""
    return max(1, len(examples(config, data, data.train)) // update_size(config))


RECIPE: Recipe[Config, TextData] = Recipe(
    name="bert",
    about=str(__doc__),
    presets=PRESETS,
    read=lambda config: read_text(config, "wordpiece"),
    problem=problem,
    updates=updates,
    data_settings=DATA_SETTINGS,
)
