"""A tiny text classifier and its data, for every trainer."""

from __future__ import annotations

from typing import Any

import torch
import transformers as hf
from torch import nn
from torch.utils.data import Dataset

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 150,
    "max_position_embeddings": 16,
}


class Texts(Dataset[dict[str, Any]]):
    """Sample i starts with token i, so that it can be told what was trained."""

    def __init__(self, samples: int = 64, length: int = 6, labels: str = "class") -> None:
        generator = torch.Generator().manual_seed(11)
        self.ids = torch.randint(100, 150, (samples, length), generator=generator)
        self.ids[:, 0] = torch.arange(samples)
        self.labels = torch.randint(0, 3, (samples,), generator=generator)
        self.kind = labels

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, i: int) -> dict[str, Any]:
        labels = self.labels[i] if self.kind == "class" else self.ids[i].clone()
        return {"input_ids": self.ids[i], "labels": labels, "unused": i}


def classifier(**config: Any) -> nn.Module:
    torch.manual_seed(1)
    return hf.BertForSequenceClassification(hf.BertConfig(**SMALL, num_labels=3, **config))


def causal() -> nn.Module:
    torch.manual_seed(1)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SMALL, use_cache=False))
