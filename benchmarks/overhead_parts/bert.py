"""BERT-base, its batches and updates, and the plainer ways of having the same scores.

Shapes: B sequences, T positions, C classes, H features.
"""

from __future__ import annotations

import argparse
import time

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import BertConfig, BertForPreTraining

from sifting import Sifter

Batch = dict[str, Tensor]


def make_model(args: argparse.Namespace) -> BertForPreTraining:
    """BERT-base with fresh weights, in training mode."""
    torch.manual_seed(0)
    config = BertConfig(
        num_hidden_layers=getattr(args, "layers", 12),
        max_position_embeddings=max(512, args.length),
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.dropout,
    )
    return BertForPreTraining(config).train()


def make_batch(config: BertConfig, size: int, length: int, labelled: float, seed: int = 0) -> Batch:
    """Random tokens, some of them labelled, and a next-sentence label each."""
    generator = torch.Generator().manual_seed(seed)
    ids_BT = torch.randint(1000, config.vocab_size, (size, length), generator=generator)
    chosen_BT = torch.rand(size, length, generator=generator) < labelled
    chosen_BT[:, 0] = True
    return {
        "input_ids": ids_BT.masked_fill(chosen_BT, 103),
        "token_type_ids": torch.zeros_like(ids_BT),
        "attention_mask": torch.ones_like(ids_BT),
        "labels": ids_BT.masked_fill(~chosen_BT, -100),
        "next_sentence_label": torch.randint(0, 2, (size,), generator=generator),
    }


def make_optimizer(model: BertForPreTraining) -> torch.optim.Optimizer:
    """Fused, the fastest there is: a slow step would flatter the ratios."""
    return torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)


def update(
    model: BertForPreTraining, optimizer: torch.optim.Optimizer, batch: Batch
) -> dict[str, float]:
    """One training step; gives the seconds of its parts."""
    begin = time.perf_counter()
    loss = model(**batch).loss
    forward = time.perf_counter()
    loss.backward()
    backward = time.perf_counter()
    optimizer.step()
    optimizer.zero_grad()
    return {
        "forward": forward - begin,
        "backward": backward - forward,
        "optimizer": time.perf_counter() - backward,
    }


def plain_scores(score: str, logits_BTC: Tensor, nsp_BC: Tensor, batch: Batch) -> Tensor:
    """Scores from logits at every position, as one writes them at first."""
    labels_BT = batch["labels"]
    if score == "loss":
        token_BT = F.cross_entropy(
            logits_BTC.flatten(0, 1), labels_BT.flatten(), reduction="none"
        ).view_as(labels_BT)
        other_B = F.cross_entropy(nsp_BC, batch["next_sentence_label"], reduction="none")
    else:
        logp_BTC = logits_BTC.log_softmax(dim=-1)
        token_BT = -(logp_BTC.exp() * logp_BTC).sum(dim=-1)
        other_B = -(nsp_BC.softmax(dim=-1) * nsp_BC.log_softmax(dim=-1)).sum(dim=-1)
    mask_BT = labels_BT != -100
    return (token_BT * mask_BT).sum(dim=1) / mask_BT.sum(dim=1) + other_B


@torch.no_grad()
def head_everywhere(model: BertForPreTraining, batch: Batch, score: str, exit: int) -> Tensor:
    """The block list sliced, the head on every position."""
    inputs = {k: v for k, v in batch.items() if "label" not in k}
    layers = model.bert.encoder.layer
    model.eval()
    try:
        model.bert.encoder.layer = layers[:exit]
        output = model(**inputs)
        return plain_scores(score, output.prediction_logits, output.seq_relationship_logits, batch)
    finally:
        model.bert.encoder.layer = layers
        model.train()


@torch.no_grad()
def naive(model: BertForPreTraining, batch: Batch, score: str, exit: int) -> Tensor:
    """The whole model, all its hidden states, then the head on those of the exit."""
    inputs = {k: v for k, v in batch.items() if "label" not in k}
    model.eval()
    hidden_BTH = model(**inputs, output_hidden_states=True).hidden_states[exit]
    logits_BTC, nsp_BC = model.cls(hidden_BTH, model.bert.pooler(hidden_BTH))
    model.train()
    return plain_scores(score, logits_BTC, nsp_BC, batch)


def sifter_at(model: BertForPreTraining, exit: int, score: str) -> Sifter:
    return Sifter(model, exit=exit, score=score, keep=0.5, audit_every=0)


def agree(model: BertForPreTraining, batch: Batch, score: str, sifter: Sifter, exit: int) -> float:
    """Largest difference between the scores of the three ways: they must be the same scores."""
    ours = sifter.score(batch)
    return max(
        float((ours - other).abs().max())
        for other in (
            head_everywhere(model, batch, score, exit),
            naive(model, batch, score, exit),
        )
    )
