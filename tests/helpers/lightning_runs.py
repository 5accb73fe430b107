"""Lightning's Trainer on a tiny model, sifted or not."""

from __future__ import annotations

import os
import random
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


class Noisy(TensorDataset):
    """Draws from the global streams of its process, as augmentation does."""

    def __getitem__(self, index: int) -> Any:
        x, y = super().__getitem__(index)
        return torch.cat([x[:1], x[1:] + torch.randn(7) * random.random()]), y


class Module(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.model = Net()
        self.seen: list[list[int]] = []
        self.losses: list[float] = []
        self.draws = False  # whether hooks draw random numbers

    def on_train_start(self) -> None:
        if self.draws:
            torch.randn(3)

    def on_train_epoch_start(self) -> None:
        if self.draws:
            torch.randn(2)

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
    noisy: bool = False,
    workers: int = 0,
    seed_workers: bool = False,
    **options: Any,
) -> Any:
    module = Module()
    module.draws = noisy
    samples: Any = Stream() if stream else data()
    samples = Noisy(*samples.tensors) if noisy else samples
    loader: Any = DataLoader(samples, size, shuffle=not stream, num_workers=workers)
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
    random.seed(5)
    os.environ["PL_SEED_WORKERS"] = str(int(seed_workers))  # as seed_everything(…, workers=True)
    trainer.fit(module, loader, ckpt_path=resume)
    return module, trainer, sifting
