"""A loop of one's own: a compiled model, autocast, a gradient scaler, and a checkpoint.

python examples/plain_loop.py
"""

from __future__ import annotations

import io

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter


def main() -> None:
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x = torch.randn(1024, 16)
    y = (x[:, 0] * x[:, 1] > 0).long()
    loader = DataLoader(TensorDataset(x, y), batch_size=64, shuffle=True, drop_last=True)

    layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.ReLU())]
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), *layers, nn.Linear(32, 2)).to(device)
    model = torch.compile(net, backend="eager")  # leave `backend` out for speed
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    scaler = torch.amp.GradScaler(device, enabled=device == "cuda")

    sifter = Sifter(model, exit=2, score="loss", keep=0.5)
    for _ in range(3):
        for inputs, labels in sifter(loader):  # 64 of 128 candidates
            inputs, labels = inputs.to(device), labels.to(device)
            with torch.autocast(device, dtype=torch.bfloat16):
                loss = F.cross_entropy(model(inputs), labels)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()

    file = io.BytesIO()  # a checkpoint: plain tensors and numbers
    torch.save({"model": net.state_dict(), "sifter": sifter.state_dict()}, file)
    file.seek(0)
    sifter.load_state_dict(torch.load(file, weights_only=True)["sifter"])
    print(sifter.stats())


if __name__ == "__main__":
    main()
