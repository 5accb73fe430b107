"""Handwritten digits of 8×8 pixels and four hidden layers: seconds a run.

Shapes: B images.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from sifting.bench.tasks.common import Data, TaskConfig, make_problem, updates
from sifting.bench.tasks.rows import TaskRows, shuffled
from sifting.training.problem import Problem
from sifting.training.recipe import Recipe

SPLIT = 0  # seed of which images are tested
TRAIN, HELD_OUT = 1000, 200  # the rest is tested


def ready(pixels_BF: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    return pixels_BF.float() / 16, labels_B.long()


def read(config: TaskConfig) -> Data:
    """The images, which come with scikit-learn."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rows = TaskRows(torch.tensor(pixels).to(torch.uint8), torch.tensor(labels), ready=ready)
    order = shuffled(len(rows), seed=SPLIT)
    train, held_out, test = order.tensor_split([TRAIN, TRAIN + HELD_OUT])
    return Data(rows.some(train[: config.samples]), rows.some(held_out), rows.some(test), 10)


def problem(config: TaskConfig, data: Data) -> Problem:
    """Layers of one width, so that the head fits after each."""
    torch.manual_seed(config.seed)
    blocks = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(4)]
    return make_problem(config, data, nn.Sequential(*blocks, nn.Linear(64, 10)))


FULL = TaskConfig(batch=32, length=600, max_lr=3e-3, evaluations=12, warmup=0.1, audit_every=10)
DIGITS: Recipe[TaskConfig, Data] = Recipe(
    name="digits",
    about="handwritten digits of 8×8 pixels, four hidden layers",
    presets={"full": FULL, "smoke": replace(FULL, samples=400, batch=16, length=12, evaluations=2)},
    read=read,
    problem=problem,
    updates=updates,
    data_settings=("samples",),
)
