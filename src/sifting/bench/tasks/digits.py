"""Handwritten digits of 8×8 pixels and four hidden layers: seconds per run.

Shapes: B images.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from sifting.bench.tasks.common import Data, TaskConfig, make_problem, updates
from sifting.bench.tasks.rows import TaskRows, shuffled
from sifting.training.problem import Problem
from sifting.training.recipe import Recipe

SPLIT = 0  # seed of which images are tested
TRAIN = 1200  # with those held out; the rest is tested
PIXELS = 64


@dataclass(frozen=True)
class DigitsConfig(TaskConfig):
    """Settings of a run."""

    width: int = PIXELS
    """Of the hidden layers."""
    held_out: int = 200
    """Images that are neither trained nor tested."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width < 1 or not 1 <= self.held_out < TRAIN:
            raise ValueError(
                f"width={self.width}, held_out={self.held_out}: give at least 1, and less than {TRAIN} held out"
            )


def ready(pixels_BF: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    return pixels_BF.float() / 16, labels_B.long()


def read(config: DigitsConfig) -> Data:
    """The images, which come with scikit-learn."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    rows = TaskRows(torch.tensor(pixels).to(torch.uint8), torch.tensor(labels), ready=ready)
    order = shuffled(len(rows), seed=SPLIT)
    train, held_out, test = order.tensor_split([TRAIN - config.held_out, TRAIN])
    return Data(rows.some(train[: config.samples]), rows.some(held_out), rows.some(test), 10)


def problem(config: DigitsConfig, data: Data) -> Problem:
    """Layers of one width, so that the head fits after each."""
    torch.manual_seed(config.seed)
    width = config.width
    first = [] if width == PIXELS else [nn.Linear(PIXELS, width), nn.ReLU()]
    blocks = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(4)]
    return make_problem(config, data, nn.Sequential(*first, *blocks, nn.Linear(width, 10)))


FULL = DigitsConfig(batch=32, length=600, max_lr=9e-3, evaluations=12, warmup=0.1, audit_every=10)
DIGITS: Recipe[DigitsConfig, Data] = Recipe(
    name="digits",
    about="handwritten digits of 8×8 pixels, four hidden layers",
    presets={"full": FULL, "smoke": replace(FULL, samples=400, batch=16, length=12, evaluations=2)},
    read=read,
    problem=problem,
    updates=updates,
    data_settings=("samples", "held_out"),
)
