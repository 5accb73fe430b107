"""A regression: by what angle is an image of Fashion-MNIST rotated?

Shapes: N images, B of a batch, H × W pixels.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.bench.tasks import fashion
from sifting.bench.tasks.common import Data, make_problem, updates
from sifting.bench.tasks.fashion import FashionConfig, read_files
from sifting.bench.tasks.rows import TaskRows, shuffled
from sifting.training.problem import Problem
from sifting.training.recipe import Recipe

MOST = math.radians(45)  # to either side; angles are on a scale of -1 to 1
SPLIT, ANGLES = 0, 3  # seeds
HELD_OUT = 2500


def ready(pixels_BHW: Tensor, angles_B: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes to centred numbers."""
    return fashion.ready(pixels_BHW, angles_B)[0], angles_B


def rotated(pixels_NHW: Tensor, *, seed: int) -> TaskRows:
    """Each image rotated by an angle of its own, and the angles."""
    chance = torch.Generator().manual_seed(seed)
    angles_N = 2 * torch.rand(len(pixels_NHW), generator=chance) - 1
    cosine, sine = (angles_N * MOST).cos(), (angles_N * MOST).sin()
    zero = torch.zeros_like(sine)
    turn_N23 = torch.stack([cosine, -sine, zero, sine, cosine, zero], dim=1).reshape(-1, 2, 3)
    turned = []
    for pixels, turn in zip(
        torch.split(pixels_NHW, 2000), torch.split(turn_N23, 2000), strict=True
    ):
        grid = F.affine_grid(turn, [len(pixels), 1, *pixels.shape[1:]], align_corners=False)
        turned.append(F.grid_sample(pixels[:, None].float(), grid, align_corners=False)[:, 0])
    return TaskRows(torch.cat(turned).round().to(torch.uint8), angles_N, ready=ready)


def read(config: FashionConfig) -> Data:
    """The images of some settings, rotated."""
    train, test = (rows.tensors_N[0] for rows in read_files(config))
    order = shuffled(len(train), seed=SPLIT)
    out = min(HELD_OUT, len(train) // 12)
    chosen = order[out:][: config.samples]
    tested = test[:100] if config.stand_in else test
    return Data(
        rotated(train[chosen], seed=ANGLES),
        rotated(train[order[: 100 if config.stand_in else out]], seed=ANGLES + 1),
        rotated(tested, seed=ANGLES + 2),
    )


def squares(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Squared error of each image."""
    found: Tensor = model(batch[0])[:, 0]
    return (found - batch[1]).square()


def measure(model: nn.Module, rows: TaskRows) -> dict[str, float]:
    """Mean squared error."""
    model.eval()
    with torch.no_grad():
        total = sum(float(squares(model, batch).sum()) for batch in rows.in_order())
    return {"squared_error": total / len(rows)}


def problem(config: FashionConfig, data: Data) -> Problem:
    """Fashion-MNIST's network with one output."""
    torch.manual_seed(config.seed)
    model = fashion.network(config.width, outputs=1)
    return make_problem(
        config,
        data,
        model,
        exit=fashion.paper_exit(model, config.arm, "0"),
        losses=squares,
        measure=measure,
        metric="squared_error",
        lower_is_better=True,
        sifter={"loss_fn": F.mse_loss},
    )


FULL = FashionConfig(batch=64, length=2000, samples=20_000, evaluations=10, warmup=0.1)
ROTATION: Recipe[FashionConfig, Data] = Recipe(
    name="rotation",
    about="regression: the angle by which an image of Fashion-MNIST is rotated",
    presets={
        "full": FULL,
        "smoke": replace(
            FULL, samples=200, batch=16, length=8, width=4, evaluations=2, stand_in=True
        ),
    },
    read=read,
    problem=problem,
    updates=updates,
    data_settings=("samples", "stand_in"),
)
