"""`sift train resnet`: the paper's modified ResNet on pictures, one arm a run.

The output is L_f·R_f + L_i·R_i with R_i the output of the second stage, scored by L_i·R_i; AdamW
with a one-cycle schedule; SIFT draws twice the batch and trains on half of it. The presets
"paper", "small" and "smoke" differ only in numbers.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sifting.additive import AdditiveExit
from sifting.engine import Diverged, Engine, Pace, Task
from sifting.recipes.arms import ARMS, Arm
from sifting.recipes.pictures import (
    PictureBatches,
    Pictures,
    PicturesError,
    normalised,
    read_pictures,
)
from sifting.runs import RunError, RunFolder, read_run
from sifting.sifter import Sifter


@dataclass(frozen=True)
class Shape:
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
    """"small" is for 32×32 pictures: a 3×3 convolution without stride, no pooling."""


@dataclass(frozen=True)
class Config:
    """Settings of one run; the defaults are the paper's."""

    data: str = "uoft-cs/cifar100"
    """Hub name, folder of parquet files, folder of class folders, or "digits"."""
    side: int = 32
    """Height and width of the pictures."""
    arm: str = "baseline"
    """Which samples are trained; `sift train resnet --help` lists the arms."""
    max_lr: float = 1e-2
    """Peak of the one-cycle schedule."""
    weight_decay: float = 5e-4
    """Of AdamW."""
    batch: int = 125
    """Pictures trained at once; an arm that selects draws twice as many."""
    epochs: int = 100
    """Passes over the data by the baseline; every arm makes as many updates."""
    warmup: float = 0.0
    """Share of the updates before the first selection."""
    seed: int = 0
    """Of initialisation, order, augmentation and choice."""
    clip: float | None = None
    """Largest norm of the gradient."""
    autocast: Literal["no", "bf16", "fp16"] = "no"
    """Precision of the forward pass."""
    device: str = "cpu"
    """Where to train, e.g. "cuda"."""
    audit_every: int = 50
    """Selections between audits of the choice."""
    evaluations: int = 20
    """Evaluations over the run."""
    shape: Shape = field(default_factory=Shape)

    def __post_init__(self) -> None:
        if self.arm not in ARMS:
            raise ValueError(f"arm={self.arm!r} is unknown: choose one of {', '.join(ARMS)}")
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup={self.warmup} is not in [0, 1): it is a share of the updates")
        for name in ("batch", "epochs", "side", "evaluations"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give at least 1")


PRESETS: dict[str, Config] = {
    "paper": Config(),
    "small": Config(
        data="uoft-cs/cifar10",
        batch=125,
        epochs=6,
        shape=Shape((1, 1, 1, 1), (32, 64, 128, 256), 16, "basic", "small"),
    ),
    "smoke": Config(
        data="digits",
        side=16,
        batch=50,
        epochs=4,
        evaluations=4,
        audit_every=10,
        shape=Shape((1, 1, 1, 1), (16, 16, 32, 32), 8, "basic", "small"),
    ),
}


def build_model(shape: Shape, classes: int, seed: int) -> nn.Module:
    """The modified ResNet's trunk and head, before the exit is added."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(seed)
    options: dict[str, Any] = {
        "embedding_size": shape.embedding,
        "hidden_sizes": list(shape.widths),
        "depths": list(shape.depths),
        "layer_type": shape.block,
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
    model: nn.Module, test: Pictures, statistics: tuple[Tensor, Tensor]
) -> dict[str, float]:
    """Accuracy and loss on the test pictures."""
    device = next(model.parameters()).device
    model.eval()
    right, loss = 0, 0.0
    with torch.no_grad():
        for start in range(0, len(test), 500):
            pixels = normalised(test.pixels_NCHW[start : start + 500], *statistics).to(device)
            labels = test.labels_N[start : start + 500].to(device)
            logits = model(pixel_values=pixels).logits
            right += int((logits.argmax(dim=1) == labels).sum())
            loss += float(nn.functional.cross_entropy(logits, labels, reduction="sum"))
    return {"accuracy": right / len(test), "test_loss": loss / len(test)}


def build(config: Config, data: tuple[Pictures, Pictures], folder: RunFolder) -> Engine:
    """Everything of one run, ready to train."""
    train, test = data
    arm: Arm = ARMS[config.arm]
    model = build_model(config.shape, train.classes, config.seed)
    exit = AdditiveExit(model)  # in every arm, so that they differ only in what they train on
    model.to(config.device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.max_lr, weight_decay=config.weight_decay
    )
    updates = config.epochs * (len(train) // config.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.max_lr, total_steps=updates)
    loader = PictureBatches(train, round(config.batch / arm.keep), seed=config.seed)
    sifter: Sifter = arm.make(
        model,
        lambda model: exit,
        warmup_steps=round(config.warmup * updates),
        audit_every=config.audit_every,
        audit_log=folder.path / "audits.jsonl",
        seed=config.seed,
    )

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        on_device = {name: value.to(config.device) for name, value in batch.items()}
        value: Tensor = model(**on_device).loss
        return value

    task = Task(
        model,
        optimizer,
        loader,
        loss,
        lambda model: evaluate(model, test, loader.statistics),
        schedule,
    )
    every = max(1, updates // config.evaluations)
    pace = Pace(
        updates=updates,
        clip=config.clip,
        autocast=config.autocast,
        log_every=max(1, every // 5),
        evaluate_every=every,
        checkpoint_every=every,
    )
    return Engine(task, sifter, pace, folder)


def train(
    config: Config,
    out: Path,
    *,
    resume: bool = False,
    data: tuple[Pictures, Pictures] | None = None,
    watch: Any = None,
) -> str:
    """Run one arm, or go on with it; returns the status its folder ends with."""
    plain: Mapping[str, Any] = asdict(config)
    plain = {
        **plain,
        "shape": {k: list(v) if isinstance(v, tuple) else v for k, v in plain["shape"].items()},
    }
    if data is None:
        data = read_pictures(config.data, side=config.side)
    if not resume:
        engine = build(config, data, RunFolder.create(out, config=plain))
    else:
        if read_run(out).status == "finished":
            return "finished"
        step = RunFolder(out).latest()
        engine = build(config, data, RunFolder.reopen(out, config=plain, step=step or 0))
        if step is not None:
            engine.resume(step)
    engine.watch = watch
    return engine.run()


@dataclass(frozen=True)
class Command:
    """What to run and where to write."""

    out: Path
    """Run folder."""
    resume: bool = False
    """Go on with the run in the folder; a finished one is left as it is."""
    config: Config = field(default_factory=Config)


def main(argv: Sequence[str] | None = None) -> int:
    """`sift train resnet [paper|small|smoke] --out FOLDER …`."""
    import tyro

    from sifting.recipes.progress import progress_line

    argv = list(argv or [])
    preset = argv.pop(0) if argv and argv[0] in PRESETS else "smoke"
    arms = "\n\n".join(f"{name}: {arm.about}." for name, arm in ARMS.items())
    try:
        command = tyro.cli(
            Command,
            default=Command(out=tyro.MISSING, config=PRESETS[preset]),
            args=argv,
            prog=f"sift train resnet {preset}",
            description=f"{__doc__}\n\nPresets: {', '.join(PRESETS)}; here {preset}. Arms:\n\n{arms}",
            config=(tyro.conf.OmitArgPrefixes,),
        )
        with progress_line(command.config.arm) as watch:
            status = train(command.config, command.out, resume=command.resume, watch=watch)
    except (RunError, PicturesError, Diverged, ValueError) as error:
        print(f"sift train resnet: {error}", file=sys.stderr)
        return 2
    run = read_run(command.out)
    assert run.summary is not None
    print(f"{status} after {run.summary['updates']} updates: {run.summary['final']}; {command.out}")
    return 0
