"""A loop under Accelerate: prepare first, then sift the prepared loader.

python examples/accelerate_loop.py
"""

from __future__ import annotations

import tempfile

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter
from sifting.checkpoint import Portable


def main() -> None:
    torch.manual_seed(0)
    x = torch.randn(1024, 16)
    y = (x[:, 0] * x[:, 1] > 0).long()
    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.ReLU())]
    model: nn.Module = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), *layers, nn.Linear(32, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True)

    accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    sifter = Sifter(model, exit=2, score="loss", keep=0.5)  # after prepare
    accelerator.register_for_checkpointing(Portable(sifter))  # of all processes, one or many

    for _ in range(3):
        for inputs, labels in sifter(loader):  # 64 of 128 candidates
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(inputs), labels)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
    with tempfile.TemporaryDirectory() as folder:
        accelerator.save_state(folder)  # the sifter's state is in it
        accelerator.load_state(folder)
    print(sifter.stats())


if __name__ == "__main__":
    main()
