from __future__ import annotations

import numpy as np
import torch
from torch import nn

from sifting.recipes.text.problem import adamw, linear


def test_the_learning_rate_rises_then_falls_to_nothing() -> None:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=2.0)
    schedule = linear(0.002)(optimizer, 1000)
    rates = []
    for _ in range(1000):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert rates[:2] == [1.0, 2.0]
    assert max(rates) == 2.0
    assert np.allclose(np.diff(rates[2:]), -2.0 / 998)
    assert optimizer.param_groups[0]["lr"] == 0.0


def test_biases_and_norms_do_not_decay() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
    groups = adamw(model, lr=0.1, weight_decay=0.5).param_groups
    assert [(len(g["params"]), g["weight_decay"]) for g in groups] == [(1, 0.5), (3, 0.0)]
    assert groups[0]["betas"] == (0.9, 0.999)
