"""A `Problem` from what people have: a Trainer of Hugging Face's or TRL's, or a LightningModule.

The trainer's model, loader, loss, optimizer, learning rate and evaluation are taken; its loop, its
callbacks and its logging are not: every arm runs in the library's own loop, which times it.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from torch import Tensor, nn

from sifting.compare.directions import less_is_better, say_direction
from sifting.compare.modules import of_module
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
    module, data = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if _of_lightning("LightningModule", module):
        if data is not None and not _of_lightning("LightningDataModule", data):
            raise ValueError(
                f"{called} returned a {type(module).__name__} with a {type(data).__name__}: give a "
                "LightningModule with its own loaders, or with a LightningDataModule"
            )
        return of_module(module, called, data=data), {}
    return None


def _is_a(module: str, name: str, made: Any) -> bool:
    kind = getattr(sys.modules.get(module), name, None)  # not there, not used
    return isinstance(kind, type) and isinstance(made, kind)


def _of_lightning(name: str, made: Any) -> bool:
    return any(_is_a(module, name, made) for module in ("lightning.pytorch", "pytorch_lightning"))


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
        greater = not less_is_better(metric)
    how = f"set greater_is_better={not greater} in TrainingArguments"
    say_direction(
        metric, greater=greater, how=how
    )  # transformers sets it by itself, to True but of a loss
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
        "updates": planned(args, loader),
    }


def planned(args: Any, loader: Any) -> int | None:
    """Updates that a Trainer's own loop would make; None where its data has no length to count epochs by."""
    if args.max_steps > 0:
        return int(args.max_steps)
    try:
        batches = len(loader)
    except TypeError:
        return None
    accumulate, epochs = int(args.gradient_accumulation_steps), float(args.num_train_epochs)
    return math.ceil(epochs * max(1, math.ceil(batches / accumulate)))


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
