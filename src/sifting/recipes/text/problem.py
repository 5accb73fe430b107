"""A language model on text as a `Problem`: its loss, optimizer and learning rate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data import DataLoader

from sifting.recipes.batches import Examples, epoch_loader
from sifting.recipes.text.masking import IGNORED
from sifting.recipes.text.presets import TextConfig
from sifting.training.launch import rank_and_world
from sifting.training.problem import Problem


def linear(warmup: float) -> Callable[[torch.optim.Optimizer, int], LRScheduler]:
    """A learning rate that rises in a line for a share of the updates, then falls to 0.

    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    >>> schedule = linear(0.25)(optimizer, 8)
    >>> rates = []
    >>> for _ in range(8):
    ...     rates.append(round(optimizer.param_groups[0]["lr"], 3))
    ...     optimizer.step(); schedule.step()
    >>> rates
    [0.5, 1.0, 1.0, 0.833, 0.667, 0.5, 0.333, 0.167]
    """

    def make(optimizer: torch.optim.Optimizer, updates: int) -> LRScheduler:
        rising = max(1, round(warmup * updates))

        def factor(step: int) -> float:
            if step < rising:
                return (step + 1) / rising
            return max(0.0, (updates - step) / max(1, updates - rising))

        return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)

    return make


def adamw(model: nn.Module, *, lr: float, weight_decay: float) -> torch.optim.AdamW:
    """AdamW with β 0.9 and 0.999; vectors, which are biases and norms, do not decay."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.999))


def sample_losses(model: nn.Module, batch: Mapping[str, Tensor], *, shift: int = 0) -> Tensor:
    """The mean loss of each sample's labelled tokens, and that of the next sentence where it has one.

    Args:
        model: of `transformers`, with logits for every token.
        batch: on its device.
        shift: 1 where a token predicts the one after it.
    """
    apart = ("labels", "next_sentence_label", "index")
    output = model(**{name: value for name, value in batch.items() if name not in apart})
    labels_BL, next_B = batch["labels"], batch.get("next_sentence_label")
    logits_BLV = output.logits if next_B is None else output.prediction_logits
    if shift:
        logits_BLV, labels_BL = logits_BLV[:, :-shift], labels_BL[:, shift:]
    values_BL = F.cross_entropy(logits_BLV.float().movedim(-1, 1), labels_BL, reduction="none")
    counted_BL = labels_BL != IGNORED
    losses_B = (values_BL * counted_BL).sum(dim=1) / counted_BL.sum(dim=1).clamp_min(1)
    if next_B is None:
        return losses_B
    return losses_B + F.cross_entropy(
        output.seq_relationship_logits.float(), next_B, reduction="none"
    )


def text_problem(
    config: TextConfig,
    model: nn.Module,
    train: Examples,
    evaluate: Callable[[nn.Module], dict[str, float]],
    *,
    shift: int = 0,
    metric: str = "accuracy",
    lower_is_better: bool = False,
) -> Problem:
    """A model of `transformers` on some examples, trained with its own loss.

    Args:
        config: the settings.
        model: with a loss of its own.
        train: what it is trained on.
        evaluate: metrics on held-out text.
        shift: see `sample_losses`.
        metric: which of them counts.
        lower_is_better: whether less of it is better.
    """
    model.to(config.device)
    rank, world = rank_and_world()

    def loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
        on_device = {k: v.to(config.device) for k, v in batch.items() if k != "index"}
        value: Tensor = model(**on_device).loss
        return value

    def batches(size: int = config.batch) -> DataLoader[Any]:
        return epoch_loader(
            train,
            size,
            seed=config.seed,
            workers=config.workers,
            rank=rank,
            world=world,
            kind="sequences",
            remedy="shorter sequences, or more text",
        )

    return Problem(
        model=model,
        batches=batches,
        loss=loss,
        losses=lambda model, batch: sample_losses(
            model, {k: v.to(config.device) for k, v in batch.items()}, shift=shift
        ),
        evaluate=evaluate,
        optimizer=adamw(model, lr=config.lr, weight_decay=config.weight_decay),
        schedule=linear(config.lr_warmup),
        batch=config.batch,
        exit=1,
        metric=metric,
        lower_is_better=lower_is_better,
        sifter={"ids": "index"},
        samples=len(train),
    )
