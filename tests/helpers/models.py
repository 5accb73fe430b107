"""Tiny models and batches that the tests share."""

from __future__ import annotations

import torch
from torch import nn

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 150,
}


class Block(nn.Module):
    """A residual block that keeps its input's shape."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.dropout = nn.Dropout(0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.dropout(torch.tanh(self.linear(x)))


class Net(nn.Module):
    """A plain classifier: embedding, four blocks in a ModuleList, batch norm, head."""

    def __init__(
        self, features: int = 8, width: int = 16, classes: int = 5, depth: int = 4
    ) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.norm = nn.BatchNorm1d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def logits_at(self, x: torch.Tensor, k: int) -> torch.Tensor:
        """The reference for an exit at block k, without any of the library's code."""
        x = self.embed(x)
        for block in list(self.blocks)[:k]:
            x = block(x)
        return self.head(self.norm(x))


def candidates(count: int = 6, size: int = 12) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Batches that a `Net` takes."""
    return [(torch.randn(size, 8), torch.randint(0, 5, (size,))) for _ in range(count)]


def token_batch(size: int = 6, length: int = 10, vocab: int = 150) -> dict[str, torch.Tensor]:
    """Masked-language-model candidates: a third of the positions labelled, one row padded."""
    ids = torch.randint(5, vocab, (size, length))
    labels = torch.where(torch.rand(size, length) < 0.34, ids, -100)
    labels[:, 1] = ids[:, 1]
    mask = torch.ones_like(ids)
    mask[-1, -3:] = 0
    labels[-1, -3:] = -100
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}
