"""CIFAR-10 and a narrow ResNet: augmented and stopped early, or a part of it until it is fitted.

Shapes: N images, B of a batch, C channels, H × W pixels.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from sifting import checksums
from sifting.bench.tasks.common import Data, TaskConfig, find_data, make_problem, missing, updates
from sifting.bench.tasks.fashion import paper_exit
from sifting.bench.tasks.rows import TaskRows, shuffled
from sifting.recipes.cache import alone, cache_folder, drop_damaged
from sifting.recipes.images.reading import Images, read_images
from sifting.recipes.images.transforms import CHANCES, augmented, normalised
from sifting.training.problem import Problem
from sifting.training.recipe import Recipe

REMEDY = "put CIFAR-10 as train.parquet and test.parquet into $SIFT_DATA/cifar10"
SPLIT = 0  # seed of which images are held out
HELD_OUT = 5000
ARRAYS = ("train_pixels", "train_labels", "test_pixels", "test_labels")
MEAN, DEVIATION = torch.tensor([0.491, 0.482, 0.447]), torch.tensor([0.247, 0.243, 0.262])


@dataclass(frozen=True)
class CifarConfig(TaskConfig):
    """Settings of a run."""

    augment: bool = True
    """Whether images are flipped and shifted again each time."""
    width: int = 24
    """Channels of the first stage; each further one has twice as many."""


def plain(pixels_BCHW: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes to centred numbers."""
    return normalised(pixels_BCHW, MEAN, DEVIATION), labels_B


def varied(pixels_BCHW: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """The same, flipped and shifted by chances from torch's global stream, which runs keep."""
    chances_BK = torch.rand(len(labels_B), CHANCES, dtype=torch.float64).numpy()
    return plain(augmented(pixels_BCHW, pixels_BCHW.shape[-1] // 8, chances_BK), labels_B)


def read_files(config: TaskConfig) -> tuple[TaskRows, TaskRows]:
    """Training and test images; decoded once, and from then on read from the cache."""
    folder = find_data("cifar10")
    if folder is None:
        missing(config, "CIFAR-10", REMEDY, "scikit-learn's digits")
        return _decoded("digits")
    found = _cached(folder)
    made = [found[name] for name in ARRAYS]
    return TaskRows(*made[:2]), TaskRows(*made[2:])


def _decoded(source: str) -> tuple[TaskRows, TaskRows]:
    train, test = read_images(source, side=32)
    assert isinstance(train, Images)
    assert isinstance(test, Images)
    return TaskRows(train.pixels_NCHW, train.labels_N), TaskRows(test.pixels_NCHW, test.labels_N)


def _cached(folder: Path) -> dict[str, Tensor]:
    """Both splits, made from the folder's files unless that was done before, and is as it was written."""
    found = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in sorted(folder.iterdir())]
    key = hashlib.sha256(repr((str(folder.resolve()), found)).encode()).hexdigest()[:16]
    path = cache_folder() / f"images-{key}.pt"
    with alone(path):
        if path.exists():
            try:
                return checksums.read_state(path)
            except checksums.Damaged as error:
                drop_damaged(path, error)
        tensors = [tensor for rows in _decoded(str(folder)) for tensor in rows.tensors_N]
        made = dict(zip(ARRAYS, tensors, strict=True))
        checksums.write_state(path, made)
        return made


def read(config: CifarConfig) -> Data:
    """The images of some settings."""
    train, test = read_files(config)
    order = shuffled(len(train), seed=SPLIT)
    out = min(HELD_OUT, len(train) // 10)
    learned = train.some(order[out:][: config.samples], ready=varied if config.augment else plain)
    held_out, test = train.some(order[:out], ready=plain), TaskRows(*test.tensors_N, ready=plain)
    if config.stand_in:  # a smoke test evaluates on little
        held_out, test = held_out.first(50), test.first(50)
    return Data(learned, held_out, test, 10)


class Block(nn.Module):
    """Two convolutions beside a shortcut, the first of which may halve height and width."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x_BCHW: Tensor) -> Tensor:
        out: Tensor = self.relu(self.body(x_BCHW) + self.shortcut(x_BCHW))
        return out


class NarrowResNet(nn.Module):
    """A stem that halves height and width, three stages of one block, a linear classifier."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.layer1 = Block(width, width, 1)
        self.layer2 = Block(width, 2 * width, 2)
        self.layer3 = Block(2 * width, 4 * width, 2)
        self.head = nn.Linear(4 * width, 10)

    def forward(self, x_BCHW: Tensor) -> Tensor:
        hidden = self.layer3(self.layer2(self.layer1(self.stem(x_BCHW))))
        logits: Tensor = self.head(hidden.mean(dim=(2, 3)))
        return logits


def problem(config: CifarConfig, data: Data) -> Problem:
    """The network on some images."""
    torch.manual_seed(config.seed)
    model = NarrowResNet(config.width)
    nn.utils.convert_conv2d_weight_memory_format(model, torch.channels_last)
    return make_problem(config, data, model, exit=paper_exit(model, config.arm, "layer1"))


FULL = CifarConfig(batch=64, length=2000, max_lr=1e-2, evaluations=10, warmup=0.1)


def _recipe(name: str, about: str, config: CifarConfig) -> Recipe[CifarConfig, Data]:
    smoke = replace(config, samples=200, batch=8, length=8, width=4, evaluations=2, stand_in=True)
    return Recipe(
        name=name,
        about=about,
        presets={"full": config, "smoke": smoke},
        read=read,
        problem=problem,
        updates=updates,
        data_settings=("samples", "augment", "stand_in"),
    )


EARLY = _recipe("cifar", "CIFAR-10 with augmentation, a narrow ResNet, stopped early", FULL)
FITTED = _recipe(
    "cifar-5000",
    "5,000 images of CIFAR-10, a narrow ResNet, trained until they are fitted",
    replace(FULL, samples=5000, augment=False, length=2400),
)
