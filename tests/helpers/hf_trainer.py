"""Runs of Hugging Face's Trainer on a tiny model, remembered step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transformers as hf

from sifting.integrations.trainer import SiftMixin
from tests.helpers.trainer_models import Texts, classifier

PAPER = {"exit": 1, "score": "loss", "keep": 0.5}


class Watched(hf.Trainer):
    """Remembers what each step trained, and its loss."""

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "seen"):
            self.seen, self.losses, self.items = [], [], []
        self.seen.append(inputs["input_ids"][:, 0].tolist())
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.losses.append(loss.item())
        self.items.append(None if len(args) == 0 or args[0] is None else int(args[0]))
        return loss


class Sifted(SiftMixin, Watched):
    pass


def arguments(folder: Path, **options: Any) -> hf.TrainingArguments:
    return hf.TrainingArguments(
        **{
            "output_dir": str(folder),
            "per_device_train_batch_size": 8,
            "num_train_epochs": 2,
            "learning_rate": 1e-3,
            "use_cpu": True,
            "report_to": "none",
            "disable_tqdm": True,
            "logging_steps": 1,
            "save_strategy": "no",
            "dataloader_pin_memory": False,
            **options,
        }
    )


def run(
    folder: Path,
    kind: type[hf.Trainer] = Sifted,
    *,
    model: Any = None,
    data: Any = None,
    sift: Any = None,
    resume: str | None = None,
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    extra = dict(extra or {})
    if issubclass(kind, SiftMixin):
        extra["sift"] = {**PAPER, **(sift or {})}
    trainer = kind(
        model=classifier() if model is None else model,
        args=arguments(folder, **options),
        train_dataset=Texts() if data is None else data,
        **extra,
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer
