"""Documents of several lengths, padded and packed, and a causal model that keeps them apart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.helpers.models import Block

VOCAB = 40


class TokenModel(nn.Module):
    """Predicts the next token from this one alone: a document is the same wherever it stands."""

    def __init__(self, width: int = 16, depth: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.head = nn.Linear(width, VOCAB)

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> dict[str, Tensor]:
        hidden = self.embed(input_ids)
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(hidden)
        if labels is None:
            return {"logits": logits}
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def documents(lengths: Sequence[int], seed: int = 0) -> list[Tensor]:
    chance = torch.Generator().manual_seed(seed)
    return [torch.randint(0, VOCAB, (n,), generator=chance) for n in lengths]


def padded(found: Sequence[Tensor], length: int | None = None) -> dict[str, Tensor]:
    """Rows of one document each, as a collator pads them."""
    longest = length or max(map(len, found))
    ids, mask = (torch.zeros(len(found), longest, dtype=torch.long) for _ in range(2))
    labels = torch.full_like(ids, -100)
    for row, one in enumerate(found):
        ids[row, : len(one)], mask[row, : len(one)], labels[row, 1 : len(one)] = one, 1, one[1:]
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def packed(found: Sequence[Tensor]) -> dict[str, Tensor]:
    """One row of documents end to end."""
    labels = [torch.cat([torch.tensor([-100]), one[1:]]) for one in found]
    return {
        "input_ids": torch.cat(list(found))[None],
        "labels": torch.cat(labels)[None],
        "position_ids": torch.cat([torch.arange(len(one)) for one in found])[None],
    }


def token_losses(model: nn.Module, one: Tensor) -> Tensor:
    """The reference: each token's loss of a document alone, without any of the library's code."""
    model.eval()
    with torch.no_grad():
        logits: Any = model(one[None])["logits"][0, :-1]
    model.train()
    return F.cross_entropy(logits, one[1:], reduction="none")
