"""Lightning: a callback, and the loader that belongs to it.

python examples/lightning_fit.py
"""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter
from sifting.integrations.lightning import SiftCallback


class Classifier(pl.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.ReLU())]
        self.model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), *layers, nn.Linear(32, 2))

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        inputs, labels = batch
        return F.cross_entropy(self.model(inputs), labels)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(1024, 16)
    y = (x[:, 0] * x[:, 1] > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)

    module = Classifier()
    sifting = SiftCallback(Sifter(module.model, exit=2, score="loss", keep=0.5))
    trainer = pl.Trainer(
        callbacks=[sifting],
        max_epochs=3,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(module, sifting.loader(loader))
    print(sifting.sifter.stats())


if __name__ == "__main__":
    main()
