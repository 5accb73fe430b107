"""Lightning's Trainer on a tiny model, sifted or not."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from sifting import Sifter
from sifting.integrations.lightning import SiftCallback
from tests.helpers.models import Net

PAPER = {"exit": 1, "score": "loss", "keep": 0.5, "audit_every": 0}


def data(samples: int = 64) -> TensorDataset:
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(samples, 8, generator=generator)
    x[:, 0] = torch.arange(samples) / samples
    return TensorDataset(x, torch.randint(0, 5, (samples,), generator=generator))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from data()


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.model = Net()
        self.seen: list[list[int]] = []
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self.seen.append((x[:, 0] * 64).round().int().tolist())
        loss = F.cross_entropy(self.model(x), y)
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def fit(
    folder: Path,
    *,
    sift: dict[str, Any] | None = None,
    size: int = 16,
    resume: Path | None = None,
    save: bool = False,
    stream: bool = False,
    **options: Any,
) -> Any:
    module = Module()
    loader: Any = DataLoader(Stream() if stream else data(), size, shuffle=not stream)
    callbacks: list[Any] = []
    sifting = None
    if sift is not None:
        sifting = SiftCallback(Sifter(module.model, **{**PAPER, **sift}))
        callbacks.append(sifting)
        loader = sifting.loader(loader)
    if save:
        callbacks.append(ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1))
    trainer = pl.Trainer(
        **{
            "accelerator": "cpu",
            "max_epochs": 2,
            "callbacks": callbacks,
            "logger": False,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            "enable_checkpointing": save,
            "default_root_dir": folder,
            **options,
        }
    )
    torch.manual_seed(5 + int(os.environ.get("RANK", "0")))
    trainer.fit(module, loader, ckpt_path=resume)
    return module, trainer, sifting
