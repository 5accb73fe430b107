"""A `Problem` from what people have: a Trainer of Hugging Face's or TRL's, or a LightningModule.

The trainer's model, loader, loss, optimizer, learning rate and evaluation are taken; its loop, its
callbacks and its logging are not: every arm runs in the library's own loop, which times it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sifting.model.trainer_loss import trainer_losses
from sifting.training.problem import Problem

# what a sifted trainer may say of its batches, which holds for every arm
ABOUT_BATCHES = [
    "forward",
    "labels",
    "ids",
    "batch_size",
    "take",
    "loss_fn",
    "losses",
    "stack",
    "pad",
]

SAMPLES_OF_TRL = ("SFTTrainer", "PRMTrainer")  # whose batches are samples


def adopted(
    made: Any, called: str, *, judged: bool = True
) -> tuple[Problem, dict[str, Any]] | None:
    """The problem that a trainer means, and its settings of a run; None where it is no trainer.

    Args:
        made: what the user's function returned.
        called: that call, for messages.
        judged: whether it is evaluated, for which a Trainer needs data.
    """
    if _is_a("transformers", "Trainer", made):
        return of_trainer(made, called, judged=judged)
    if _is_a("lightning.pytorch", "LightningModule", made) or _is_a(
        "pytorch_lightning", "LightningModule", made
    ):
        return of_module(made, called), {}
    return None


def _is_a(module: str, name: str, made: Any) -> bool:
    kind = getattr(sys.modules.get(module), name, None)  # not there, not used
    return isinstance(kind, type) and isinstance(made, kind)


def of_trainer(trainer: Any, called: str, *, judged: bool = True) -> tuple[Problem, dict[str, Any]]:
    """From a Hugging Face `Trainer`, TRL's too: its own evaluation metric counts."""
    args = trainer.args
    check_rows(trainer, called)
    if trainer.train_dataset is None or (judged and trainer.eval_dataset is None):
        missing = "train_dataset" if trainer.train_dataset is None else "eval_dataset"
        raise ValueError(
            f"{called} returned a {type(trainer).__name__} without {missing}=, and arms are trained on one and "
            "judged by the other: give it both"
        )
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise ValueError(
            f"{called} returned a {type(trainer).__name__} with fsdp or deepspeed, and a comparison runs in one "
            "process: leave them out"
        )
    named = args.metric_for_best_model or "loss"
    metric = named if named.startswith("eval_") else f"eval_{named}"
    greater = args.greater_is_better
    if greater is None:
        greater = not metric.endswith("loss")
    trainer.callback_handler.callbacks.clear()  # nothing of its own loop runs
    _add_noise(trainer)
    loader = trainer.get_train_dataloader()
    sift = getattr(trainer, "_sift", None)
    losses = _losses(trainer)
    sifter = {} if losses is None else {"losses": losses}
    if isinstance(sift, dict):
        loader = loader.loader  # a sifted trainer's, as it was before
        sifter |= {name: sift[name] for name in ABOUT_BATCHES if name in sift}

    def loss(model: nn.Module, batch: Any) -> Tensor:
        found: Tensor = trainer.compute_loss(model, trainer._prepare_inputs(batch))
        return found

    def evaluate(model: nn.Module) -> dict[str, float]:
        found = trainer.evaluate()
        if metric not in found:
            known = ", ".join(name for name in found if name.startswith("eval_"))
            raise ValueError(
                f"{called}: metric_for_best_model={named!r}, and an evaluation gives {known}: name one of them"
            )
        return {
            k: float(v) for k, v in found.items() if isinstance(v, int | float) and k != "epoch"
        }

    def schedule(optimizer: Any, updates: int) -> Any:
        trainer.lr_scheduler = None
        return trainer.create_scheduler(num_training_steps=updates, optimizer=optimizer)

    trainer.create_optimizer()
    problem = Problem(
        model=trainer.model,
        batches=lambda: loader,
        loss=loss,
        evaluate=evaluate,
        optimizer=trainer.optimizer,
        batch=args.train_batch_size,
        schedule=schedule,
        metric=metric,
        lower_is_better=not greater,
        sifter=sifter,
        held_out=trainer.get_eval_dataloader,
    )
    autocast = "bf16" if args.bf16 else "fp16" if args.fp16 else "no"
    return problem, {
        "accumulate": args.gradient_accumulation_steps,
        "clip": args.max_grad_norm or None,
        "autocast": autocast,
    }


def check_rows(trainer: Any, called: str) -> None:
    """Raise where the rows of a batch are no samples: of most of TRL's trainers, whose pairs and groups
    an arm would tear apart.
    """
    for base in type(trainer).__mro__:
        if base.__module__.split(".")[0] != "trl" or not base.__name__.endswith("Trainer"):
            continue
        if base.__name__ in SAMPLES_OF_TRL:
            return
        raise ValueError(
            f"{called} returned a {type(trainer).__name__}, a {base.__name__} of TRL, whose batches are not "
            "single samples with a loss each, so that arms would tear them apart: compare supervised "
            "fine-tuning, or train with and without sift= and hold the evaluations side by side"
        )


def _add_noise(trainer: Any) -> None:
    """NEFTune's noise on the embeddings, which the Trainer's own loop would put there."""
    if getattr(trainer, "neftune_noise_alpha", None) is not None:
        from transformers.integrations.neftune import activate_neftune

        activate: Any = activate_neftune  # has no types
        activate(trainer.model, trainer.neftune_noise_alpha, trainer.accelerator)


def _losses(trainer: Any) -> Any:
    """What is trained, one a sample; None where it is the model's own loss."""
    if getattr(trainer.args, "loss_type", None) == "dft":
        from sifting.integrations.trl import dft_losses

        return dft_losses
    return trainer_losses(trainer)


def of_module(module: Any, called: str) -> Problem:
    """From a `LightningModule` with its own loaders: what it monitors counts, else val_loss."""
    made = module.configure_optimizers()
    monitor, schedules = "val_loss", None
    if isinstance(made, dict):
        schedules = made.get("lr_scheduler")
        if isinstance(schedules, dict):
            monitor = schedules.get("monitor", monitor)
        monitor, made = made.get("monitor", monitor), made["optimizer"]
    planned = getattr(module, "lr_schedule", None)
    if schedules is not None and planned is None:
        raise ValueError(
            f"{called}: configure_optimizers gives an lr_scheduler, which is planned for a fixed length, but "
            "the budget decides how long each arm trains: also give the module lr_schedule(optimizer, updates)"
        )
    if not isinstance(made, torch.optim.Optimizer) or not module.automatic_optimization:
        raise ValueError(
            f"{called}: configure_optimizers gives {type(made).__name__}, and arms are trained with one optimizer "
            "by automatic optimization: give a Problem of your own instead"
        )
    loader, judged = module.train_dataloader(), module.val_dataloader()
    size = getattr(loader, "batch_size", None)
    if not isinstance(size, int):
        raise ValueError(
            f"{called}: train_dataloader gives a {type(loader).__name__} without a batch_size, which is "
            "needed to make arms train alike: give a DataLoader"
        )

    def loss(model: nn.Module, batch: Any) -> Tensor:
        with _logged(module):
            found = module.training_step(batch, 0)
        return found["loss"] if isinstance(found, dict) else found  # type: ignore[no-any-return]

    def evaluate(model: nn.Module) -> dict[str, float]:
        module.eval()
        with torch.no_grad(), _logged(module) as logged:
            for number, batch in enumerate(judged):
                module.validation_step(batch, number)
        metrics = {name: sum(values) / len(values) for name, values in logged.items()}
        if monitor not in metrics:
            raise ValueError(
                f"{called}: {monitor!r} is monitored, and validation_step logs "
                f"{', '.join(metrics) or 'nothing'}: log it there, or name another as 'monitor' in "
                "configure_optimizers"
            )
        return metrics

    return Problem(
        model=_called_in(module),
        batches=lambda: loader,
        loss=loss,
        evaluate=evaluate,
        optimizer=made,
        batch=size,
        schedule=planned,
        metric=monitor,
        lower_is_better="loss" in monitor or "error" in monitor,
        held_out=lambda: judged,
    )


def _called_in(module: Any) -> nn.Module:
    """The model that a module's steps call: itself where it has a forward, else its largest child."""
    owner = next(kind for kind in type(module).__mro__ if "forward" in vars(kind))
    children = list(module.children())
    if (
        not owner.__module__.startswith(("lightning.", "pytorch_lightning.", "torch."))
        or not children
    ):
        return module  # type: ignore[no-any-return]
    found: nn.Module = max(children, key=lambda child: sum(p.numel() for p in child.parameters()))
    return found


@contextmanager
def _logged(module: Any) -> Iterator[dict[str, list[float]]]:
    """What a module logs in its steps, while open; it has no trainer to log to."""
    found: dict[str, list[float]] = {}

    def log(name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        found.setdefault(name, []).append(float(value))

    def log_dict(values: Any, *args: Any, **kwargs: Any) -> None:
        for name, value in values.items():
            log(name, value)

    own: dict[str, Callable[..., None]] = {"log": log, "log_dict": log_dict}
    vars(module).update(own)
    try:
        yield found
    finally:
        for name in own:
            del vars(module)[name]
