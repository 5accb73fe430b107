"""Data that a reference is made of."""

from __future__ import annotations

import torch
from torch.utils.data import TensorDataset

COUNT = 48


def make_data() -> TensorDataset:
    torch.manual_seed(0)
    return TensorDataset(torch.randn(COUNT, 8), torch.randint(0, 5, (COUNT,)))
