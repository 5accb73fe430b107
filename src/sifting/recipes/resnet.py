"""`sift train resnet`: the paper's modified ResNet on images, one arm per run.

The output is L_f·R_f + L_i·R_i with R_i the output of the second stage, scored by L_i·R_i; AdamW
with a one-cycle schedule; SIFT draws twice the batch and trains on half of it. The presets
"paper", "small" and "smoke" differ only in numbers.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn
from torch.utils.data import DataLoader

from sifting.exits.additive import AdditiveExit
from sifting.recipes.images.batches import image_batches, plain_batches
from sifting.recipes.images.reading import EncodedImages, ImageSplit, Statistics, read_images
from sifting.rng import RandomState
from sifting.training.config import RunConfig
from sifting.training.launch import rank_and_world
from sifting.training.problem import Problem
from sifting.training.recipe import Recipe, update_size

ImageData = tuple[ImageSplit, ImageSplit]


@dataclass(frozen=True)
class ResNetShape:
    """The network: `transformers`' ResNet of these sizes."""

    depths: tuple[int, ...] = (3, 4, 6, 3)
    """Blocks in each stage."""
    widths: tuple[int, ...] = (256, 512, 1024, 2048)
    """Channels that each stage puts out."""
    embedding: int = 64
    """Channels of the stem."""
    block: Literal["bottleneck", "basic"] = "bottleneck"
    """Kind of block."""
    stem: Literal["large", "small"] = "large"
    """"small" is for 32×32 images: a 3×3 convolution without stride, no pooling."""
    halve_first: bool = False
    """Whether the first stage halves height and width, as the others do."""


@dataclass(frozen=True)
class Config(RunConfig):
    """Settings of one run; the defaults are the paper's."""

    data: str = "uoft-cs/cifar100"
    """Hub name, folder of parquet files, folder of class folders, or "digits"."""
    side: int = 32
    """Height and width of the images; 224 for Food-101 (ethz/food101) as usual."""
    decode: Literal["auto", "memory", "workers"] = "auto"
    """Decode images once and keep them, or each time on worker processes; auto: those above 64×64."""
    workers: int = 2
    """Processes that decode images which are not kept; the run is the same with any number."""
    images: int | None = None
    """Images to train on, spread evenly over the data; None for all."""
    max_lr: float = 1e-2
    """Peak of the one-cycle schedule."""
    weight_decay: float = 5e-4
    """Of AdamW."""
    batch: int = 125
    """Images trained at once; an arm that selects draws twice as many."""
    epochs: int = 100
    """Passes over the data by the baseline; every arm makes as many updates."""
    recalibrate: int = 0
    """Unselected training batches from which a copy's BatchNorm statistics are taken again at the end."""
    shape: ResNetShape = field(default_factory=ResNetShape)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epochs", "side", "images"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1")
        if self.workers < 0:
            raise ValueError(f"workers={self.workers}: give a number of processes, or 0 for none")
        if self.recalibrate < 0:
            raise ValueError(
                f"recalibrate={self.recalibrate}: give a number of batches, or 0 for none"
            )


PRESETS: dict[str, Config] = {
    "paper": Config(),
    "small": Config(
        data="uoft-cs/cifar10",
        images=10_000,
        batch=50,
        epochs=6,
        evaluations=8,
        recalibrate=50,
        shape=ResNetShape((1, 1, 2, 1), (16, 32, 64, 128), 16, "basic", "small", halve_first=True),
    ),
    "smoke": Config(
        data="digits",
        side=16,
        batch=50,
        epochs=4,
        evaluations=4,
        audit_every=10,
        recalibrate=20,
        shape=ResNetShape((1, 1, 1, 1), (16, 16, 32, 32), 8, "basic", "small"),
    ),
}


def build_model(shape: ResNetShape, classes: int, seed: int) -> nn.Module:
    """The modified ResNet's trunk and head, before the exit is added."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(seed)
    options: dict[str, Any] = {
        "embedding_size": shape.embedding,
        "hidden_sizes": list(shape.widths),
        "depths": list(shape.depths),
        "layer_type": shape.block,
        "downsample_in_first_stage": shape.halve_first,
        "num_labels": classes,
    }
    make: Any = ResNetForImageClassification
    model: nn.Module = make(ResNetConfig(**options))
    if shape.stem == "small":
        embedder: Any = model.get_submodule("resnet.embedder")
        embedder.embedder.convolution = nn.Conv2d(3, shape.embedding, 3, padding=1, bias=False)
        embedder.pooler = nn.Identity()
    torch.nn.utils.convert_conv2d_weight_memory_format(model, torch.channels_last)
    return model


def evaluate(
    model: nn.Module, test: ImageSplit, statistics: Statistics, *, workers: int = 0
) -> dict[str, float]:
    """Accuracy and loss on the test images."""
    size = 100 if isinstance(test, EncodedImages) else 500  # the former are large
    device = next(model.parameters()).device
    model.eval()
    right, loss = 0, 0.0
    with torch.no_grad():
        for pixels, labels in plain_batches(test, size, statistics=statistics, workers=workers):
            labels = labels.to(device)
            logits = model(pixel_values=pixels.to(device)).logits
            right += int((logits.argmax(dim=1) == labels).sum())
            loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
    return {"accuracy": right / len(test), "test_loss": loss / len(test)}


def recalibrated(model: nn.Module, batches: Iterable[dict[str, Tensor]]) -> nn.Module:
    """A copy whose BatchNorm layers average over these batches; the model and all streams stay as they are.

    Training on selected samples leaves the statistics of the selected in those layers.
    """
    device = next(model.parameters()).device
    streams = RandomState.now()
    copied = copy.deepcopy(model)
    update_bn((batch["pixel_values"].to(device) for batch in batches), copied)
    streams.restore()
    return copied


def _endless(batches: Iterable[dict[str, Tensor]]) -> Iterator[dict[str, Tensor]]:
    while True:
        yield from batches


def problem(config: Config, data: ImageData) -> Problem:
    """The modified ResNet on some images."""
    train, test = data
    model = build_model(config.shape, train.classes, config.seed)
    exit = AdditiveExit(model)  # in every arm, so that they differ only in what they train on
    model.to(config.device)
    statistics = train.statistics()
    rank, world = rank_and_world()
    workers = config.workers if isinstance(train, EncodedImages) else 0

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        pixels, labels = (batch[name].to(config.device) for name in ("pixel_values", "labels"))
        value: Tensor = model(pixel_values=pixels, labels=labels).loss
        return value

    def losses(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        pixels, labels = (batch[name].to(config.device) for name in ("pixel_values", "labels"))
        return F.cross_entropy(model(pixel_values=pixels).logits, labels, reduction="none")

    def batches(size: int = config.batch, seed: int = config.seed) -> DataLoader[Any]:
        return image_batches(
            train,
            size,
            seed=seed,
            statistics=statistics,
            workers=workers,
            rank=rank,
            world=world,
        )

    def at_end(model: nn.Module) -> dict[str, float]:
        drawn = islice(_endless(batches(seed=config.seed + 1)), config.recalibrate)
        found = evaluate(recalibrated(model, drawn), test, statistics, workers=workers)
        return {f"{name}_recalibrated": value for name, value in found.items()}

    return Problem(
        model=model,
        batches=batches,
        loss=loss,
        losses=losses,
        evaluate=lambda model: evaluate(model, test, statistics, workers=workers),
        optimizer=torch.optim.AdamW(
            model.parameters(), lr=config.max_lr, weight_decay=config.weight_decay
        ),
        schedule=lambda optimizer, updates: torch.optim.lr_scheduler.OneCycleLR(
            optimizer, config.max_lr, total_steps=updates
        ),
        batch=config.batch,
        exit=exit,
        sifter={"ids": "index"},
        samples=len(train),
        at_end=at_end if config.recalibrate else None,
    )


def read(config: Config) -> ImageData:
    """The images that some settings name."""
    keep = {"auto": None, "memory": True, "workers": False}[config.decode]
    return read_images(config.data, side=config.side, limit=config.images, keep=keep)


RECIPE: Recipe[Config, ImageData] = Recipe(
    name="resnet",
    about=str(__doc__),
    presets=PRESETS,
    read=read,
    problem=problem,
    updates=lambda config, data: max(1, config.epochs * (len(data[0]) // update_size(config))),
    data_settings=("data", "side", "decode", "images"),
)
