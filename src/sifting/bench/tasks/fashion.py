"""Fashion-MNIST and a small convolutional network: clean, with random labels, long-tailed, redundant.

Shapes: N images, B of a batch, H × W pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sifting.bench.tasks.common import Data, TaskConfig, find_data, make_problem, missing, updates
from sifting.bench.tasks.idx import read_idx
from sifting.bench.tasks.rows import TaskRows, shuffled
from sifting.exits.additive import AdditiveExit
from sifting.exits.base import Exit
from sifting.training.problem import Problem
from sifting.training.recipe import Recipe

PACKAGE = "/usr/share/datasets/fashion-mnist"  # of Debian's dataset-fashion-mnist
REMEDY = (
    "install Debian's package dataset-fashion-mnist, or put its four files (train-images-idx3-ubyte.gz "
    "and so on) into $SIFT_DATA/fashion-mnist"
)
CLASSES = 10
SHARE = 1 / 12  # of the training set that is held out
SHIFT = 2  # pixels by which copies are moved at most
MEAN, DEVIATION = 0.286, 0.353  # of the training set's pixels, on a scale of 0 to 1
SPLIT, LABELS, COPIES = 0, 1, 2  # seeds of what is the same in all runs


@dataclass(frozen=True)
class FashionConfig(TaskConfig):
    """Settings of a run."""

    random_labels: float = 0.0
    """Share of the training set's labels that are replaced at random, uniformly."""
    tail: float = 1.0
    """How many times as often the commonest class comes as the rarest."""
    copies: int = 1
    """How often each image comes, lightly shifted where it comes more than once."""
    width: int = 32
    """Channels of the first convolution; the second has twice as many."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.random_labels <= 1:
            raise ValueError(f"random_labels={self.random_labels}: give a share from 0 to 1")
        for name in ("tail", "copies", "width"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1")


def ready(pixels_BHW: Tensor, labels_B: Tensor) -> tuple[Tensor, Tensor]:
    """Bytes to centred numbers."""
    values = (pixels_BHW[:, None].float() / 255 - MEAN) / DEVIATION
    return values.contiguous(memory_format=torch.channels_last), labels_B.long()


def read_files(config: TaskConfig) -> tuple[TaskRows, TaskRows]:
    """Training and test images with their labels."""
    folder = find_data("fashion-mnist", PACKAGE)
    if folder is None:
        missing(config, "Fashion-MNIST", REMEDY, "scikit-learn's digits")
        return _digits()
    train, test = (_split(folder, name) for name in ("train", "t10k"))
    return train, test


def _split(folder: Path, name: str) -> TaskRows:
    images = read_idx(folder / f"{name}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{name}-labels-idx1-ubyte.gz")
    return TaskRows(images, labels, ready=ready)


def _digits() -> tuple[TaskRows, TaskRows]:
    """Digits of 8×8 pixels in the size of Fashion-MNIST."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    small_N1HW = torch.tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    large = F.interpolate(small_N1HW, size=(28, 28), mode="bilinear")[:, 0]
    both = TaskRows(
        (255 * large).to(torch.uint8), torch.tensor(labels).to(torch.uint8), ready=ready
    )
    order = shuffled(len(both), seed=SPLIT)
    return both.some(order[:1400]), both.some(order[1400:])


def with_random_labels(labels_N: Tensor, share: float) -> Tensor:
    """The labels, a share of them replaced at random.

    >>> changed = with_random_labels(torch.zeros(1000).to(torch.uint8), 0.5)
    >>> 400 < int((changed != 0).sum()) < 500
    True
    """
    chance = torch.Generator().manual_seed(LABELS)
    drawn_N = torch.randint(CLASSES, labels_N.shape, generator=chance).to(labels_N.dtype)
    return torch.where(torch.rand(labels_N.shape, generator=chance) < share, drawn_N, labels_N)


def long_tail(labels_N: Tensor, ratio: float) -> Tensor:
    """Which samples to keep so that the first class comes `ratio` times as often as the last.

    >>> kept = long_tail(torch.arange(10).repeat(100), 100.0)
    >>> torch.arange(10).repeat(100)[kept].bincount().tolist()
    [100, 60, 36, 22, 13, 8, 5, 3, 2, 1]
    """
    rows = []
    for label in range(CLASSES):
        found = (labels_N == label).nonzero()[:, 0]
        rows.append(found[: max(1, round(len(found) * ratio ** (-label / (CLASSES - 1))))])
    return torch.cat(rows).sort().values


def with_copies(rows: TaskRows, copies: int) -> TaskRows:
    """Each image several times, each time shifted by some pixels."""
    pixels_NHW, labels_N = (tensor.repeat_interleave(copies, 0) for tensor in rows.tensors_N)
    height, width = pixels_NHW.shape[1:]
    chance = torch.Generator().manual_seed(COPIES)
    moves_N2 = torch.randint(-SHIFT, SHIFT + 1, (len(labels_N), 2), generator=chance)
    padded = F.pad(pixels_NHW, (SHIFT,) * 4)
    down_NH = SHIFT + moves_N2[:, :1] + torch.arange(height)
    across_NW = SHIFT + moves_N2[:, 1:] + torch.arange(width)
    each = torch.arange(len(labels_N))[:, None, None]
    return TaskRows(
        padded[each, down_NH[:, :, None], across_NW[:, None, :]], labels_N, ready=rows.ready
    )


def read(config: FashionConfig) -> Data:
    """The images of some settings. What is held out has labels as random as what is trained."""
    train, test = read_files(config)
    pixels_NHW, labels_N = train.tensors_N
    rows = TaskRows(pixels_NHW, with_random_labels(labels_N, config.random_labels), ready=ready)
    if config.tail > 1:
        rows = rows.some(long_tail(rows.tensors_N[1], config.tail))
    order = shuffled(len(rows), seed=SPLIT)
    out = round(len(rows) * SHARE)
    chosen = order[out:][: config.samples]
    learned, held_out = rows.some(chosen), rows.some(order[:out])
    if config.copies > 1:
        learned, held_out = with_copies(learned, config.copies), with_copies(held_out, 1)
    if config.stand_in:  # a smoke test evaluates on little
        held_out, test = held_out.first(100), test.first(200)
    return Data(learned, held_out, test, CLASSES)


def network(width: int, outputs: int = CLASSES) -> nn.Sequential:
    """Two convolutions and a hidden layer."""
    layers = nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.MaxPool2d(2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 7 * 7, 128),
        nn.ReLU(),
        nn.Linear(128, outputs),
    )
    nn.utils.convert_conv2d_weight_memory_format(layers, torch.channels_last)  # faster on a CPU
    return layers


def paper_exit(model: nn.Module, arm: str, at: str) -> int | str | Exit:
    """The paper's exit for a convolutional network, in those arms alone that score by it.

    It is a second classifier on early features, added to the output: the network is changed by it,
    as the paper's is. All other arms train the network as it is.

    Args:
        model: the network.
        arm: of the run.
        at: path of the module whose output is classified.
    """
    by_exit = arm in ("sift", "sift-entropy", "sift-mixed")
    return AdditiveExit(model, at) if by_exit else 1


def problem(config: FashionConfig, data: Data) -> Problem:
    """The network on some images."""
    torch.manual_seed(config.seed)
    model = network(config.width)
    return make_problem(config, data, model, exit=paper_exit(model, config.arm, "0"))


FULL = FashionConfig(evaluations=12, warmup=0.1, batch=64, length=1600)
SMOKE = replace(FULL, samples=400, batch=16, length=12, width=4, evaluations=2, stand_in=True)


def _recipe(name: str, about: str, **settings: object) -> Recipe[FashionConfig, Data]:
    return Recipe(
        name=name,
        about=about,
        presets={
            size: replace(config, **{**settings, **_smaller(size, settings)})  # type: ignore[arg-type]
            for size, config in (("full", FULL), ("smoke", SMOKE))
        },
        read=read,
        problem=problem,
        updates=updates,
        data_settings=("samples", "random_labels", "tail", "copies", "stand_in"),
    )


def _smaller(size: str, settings: dict[str, object]) -> dict[str, object]:
    """The numbers of a smoke test, whatever those of the whole task are."""
    own: dict[str, object] = {
        "samples": 40 if settings.get("copies") else 400,
        "length": SMOKE.length,
    }
    return own if size == "smoke" else {}


CLEAN = _recipe("fashion", "Fashion-MNIST, a small CNN")
NOISY_5 = _recipe("fashion-5", "Fashion-MNIST, 5 % of the labels random", random_labels=0.05)
NOISY_20 = _recipe("fashion-20", "Fashion-MNIST, 20 % of the labels random", random_labels=0.2)
NOISY_40 = _recipe("fashion-40", "Fashion-MNIST, 40 % of the labels random", random_labels=0.4)
BY_HEART = _recipe(
    "fashion-5-long",
    "10,000 images of Fashion-MNIST, 5 % of the labels random, trained until they are known by heart",
    random_labels=0.05,
    samples=10_000,
    length=6000,
    max_lr=1e-3,
)
TAIL = _recipe(
    "fashion-tail", "Fashion-MNIST, one class 100 times as common as another", tail=100.0
)
COPIED = _recipe(
    "fashion-copies",
    "6,000 images of Fashion-MNIST, each ten times, lightly shifted",
    copies=10,
    samples=6000,
)
