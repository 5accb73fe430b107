"""Tiny models of the usual kinds, and batches for each; all of it decided by seeds."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import transformers as hf
from torch import Tensor, nn

FEATURES, CLASSES, VOCABULARY, LENGTH, SIDE = 8, 5, 120, 10, 16
COUNT, SIZE = 6, 16  # candidate batches an epoch, candidates in each
TEXT = {
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 16,
}


def seed_all(seed: int) -> None:
    """All global random streams."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - the global stream is what is fixed


class Block(nn.Module):
    """A residual block that keeps its input's shape."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(width, width), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(torch.tanh(self.linear(x)))


class Net(nn.Module):
    """A plain classifier with dropout, so that global streams count."""

    def __init__(self, *, out: int = CLASSES, width: int = 16, dropout: float = 0.2) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList([Block(width, dropout) for _ in range(4)])
        # under several ranks, statistics of a batch would be each one's own
        self.norm = nn.BatchNorm1d(width) if dropout else nn.LayerNorm(width)
        self.head = nn.Linear(width, out)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Stages(nn.Module):
    """A small CNN of three stages of differing sizes."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(3, 8), (8, 16), (16, 24)]
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.BatchNorm2d(b), nn.ReLU()) for a, b in sizes
        )
        self.head = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean(dim=(2, 3)))


def sequential() -> nn.Module:
    blocks = [nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(nn.Linear(FEATURES, 16), nn.Sequential(*blocks), nn.Linear(16, CLASSES))


def vit() -> nn.Module:
    sizes = {key: TEXT[key] for key in list(TEXT)[:4]}
    config = hf.ViTConfig(**sizes, image_size=SIDE, patch_size=4, num_labels=CLASSES)
    return hf.ViTForImageClassification(config)


def gpt2() -> nn.Module:
    config = hf.GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=3, n_head=2, n_inner=32,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model: Any = hf.GPT2LMHeadModel(config)
    model.loss_type = "ForCausalLM"
    return model


MODELS: dict[str, Callable[[], nn.Module]] = {
    "net": Net,
    "normed": lambda: Net(dropout=0.0),
    "regression": lambda: Net(out=1),
    "sequential": sequential,
    "cnn": Stages,
    "vit": vit,
    "bert-mlm": lambda: hf.BertForMaskedLM(hf.BertConfig(**TEXT)),
    "bert-pretraining": lambda: hf.BertForPreTraining(hf.BertConfig(**TEXT)),
    "bert-classifier": lambda: hf.BertForSequenceClassification(
        hf.BertConfig(**TEXT, num_labels=CLASSES)
    ),
    "gpt2": gpt2,
    "llama": lambda: hf.LlamaForCausalLM(hf.LlamaConfig(**TEXT, use_cache=False)),
}


def make_model(kind: str) -> nn.Module:
    seed_all(1)
    model = MODELS[kind]()
    model.train()
    return model


def samples(kind: str, count: int = COUNT * SIZE) -> dict[str, Tensor]:
    """Samples of a data set, member by member; "index" is their number."""
    g = torch.Generator().manual_seed(7)
    index = torch.arange(count)
    if kind in ("cnn", "vit"):
        labels = torch.randint(0, CLASSES, (count,), generator=g)
        pixels = torch.randn(count, 3, SIDE, SIDE, generator=g) + 0.3 * labels.view(-1, 1, 1, 1)
        return {"pixel_values": pixels, "labels": labels, "index": index}
    if kind in ("net", "normed", "sequential", "regression"):
        x = torch.randn(count, FEATURES, generator=g)
        y = x[:, :CLASSES].argmax(dim=1)
        noisy = torch.rand(count, generator=g) < 0.2
        y = torch.where(noisy, torch.randint(0, CLASSES, (count,), generator=g), y)
        if kind == "regression":
            return {"x": x, "labels": x.sum(dim=1, keepdim=True) + y[:, None], "index": index}
        return {"x": x, "labels": y, "index": index}
    ids = torch.randint(5, VOCABULARY, (count, LENGTH), generator=g)
    found = {"input_ids": ids, "index": index}
    if kind in ("gpt2", "llama"):
        return {**found, "labels": ids.clone()}
    found["attention_mask"] = mask = torch.ones_like(ids)
    mask[::5, -3:] = 0
    if kind == "bert-classifier":
        return {**found, "labels": torch.randint(0, CLASSES, (count,), generator=g)}
    masked = (torch.rand(ids.shape, generator=g) < 0.3) & mask.bool()
    masked[:, 1] = True
    found |= {"labels": torch.where(masked, ids, -100), "input_ids": ids.masked_fill(masked, 3)}
    if kind == "bert-pretraining":
        types = (torch.arange(LENGTH) >= LENGTH // 2).long().expand_as(ids).clone()
        following = torch.randint(0, 2, (count,), generator=g)
        found |= {"token_type_ids": types, "next_sentence_label": following}
    return found


PAIRED = ("net", "normed", "sequential", "regression", "cnn")  # called as model(inputs)


def collate(kind: str, rows: dict[str, Tensor]) -> Any:
    """A batch as the kind of model takes it; a pair has the samples' numbers behind it."""
    if kind not in PAIRED:
        return rows
    inputs = rows["pixel_values" if kind == "cnn" else "x"]
    return inputs, rows["labels"], rows["index"]


class Samples(torch.utils.data.Dataset[Any]):
    """The same, one at a time, for a `DataLoader`."""

    def __init__(self, kind: str) -> None:
        self.kind, self.rows = kind, samples(kind)

    def __len__(self) -> int:
        return len(self.rows["index"])

    def __getitem__(self, i: int) -> Any:
        return collate(self.kind, {name: value[i] for name, value in self.rows.items()})


def batches(kind: str, *, ids: bool = False, rank: int = 0, world: int = 1) -> list[Any]:
    """Candidate batches of one epoch, or this rank's equal part of each.

    Args:
        ids: whether the samples' numbers are in them.
    """
    rows = samples(kind)
    if not ids and kind not in PAIRED:
        rows.pop("index")
    found = []
    for start in range(0, COUNT * SIZE, SIZE):
        part = {
            name: value[start : start + SIZE].chunk(world)[rank] for name, value in rows.items()
        }
        batch = collate(kind, part)
        found.append(batch if ids or kind not in PAIRED else batch[:2])
    return found


def loss_of(kind: str, model: nn.Module, batch: Any, weights: Tensor | None) -> Tensor:
    """The user's own loss; weighted where the model leaves it to them."""
    if kind not in PAIRED:
        loss: Tensor = model(**{k: v for k, v in batch.items() if k != "index"}).loss
        return loss
    out, labels = model(batch[0]), batch[1]
    if kind == "regression":
        losses = F.mse_loss(out, labels, reduction="none").mean(dim=1)
    else:
        losses = F.cross_entropy(out, labels, reduction="none")
    return losses.mean() if weights is None else (weights * losses).mean()
