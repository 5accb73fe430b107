"""Tiny DPO and reward runs: pairs of completions, and trainers that remember what they trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from datasets import Dataset
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer

from sifting.integrations.trl_pairs import SiftPairsMixin
from tests.helpers.trl_sft import WORDS, llama, tokenizer

SETTINGS: dict[str, Any] = {
    "per_device_train_batch_size": 4,
    "max_steps": 4,
    "max_length": 24,
    "learning_rate": 1e-2,
    "use_cpu": True,
    "bf16": False,
    "report_to": "none",
    "disable_tqdm": True,
    "logging_steps": 1,
    "save_strategy": "no",
    "dataloader_pin_memory": False,
    "gradient_checkpointing": False,
}


def pairs(count: int = 64) -> Any:
    """Prompts with a completion that is preferred to another, of different lengths."""
    generator = torch.Generator().manual_seed(0)

    def words(least: int, most: int) -> str:
        size = int(torch.randint(least, most, (1,), generator=generator))
        return " ".join(
            f"w{i}" for i in torch.randint(WORDS, (size,), generator=generator).tolist()
        )

    return Dataset.from_list(
        [
            {"prompt": words(2, 5), "chosen": " " + words(2, 9), "rejected": " " + words(2, 9)}
            for _ in range(count)
        ]
    )


class _Watched:
    """Remembers the rows that each step trained, and its loss."""

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if self.model.training and torch.is_grad_enabled():  # type: ignore[attr-defined]
            self.__dict__.setdefault("seen", []).append(inputs["input_ids"].tolist())
        return super().compute_loss(model, inputs, *args, **kwargs)  # type: ignore[misc]

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)  # type: ignore[misc]
        self.__dict__.setdefault("losses", []).append(loss.item())
        return loss


class WatchedDPO(_Watched, DPOTrainer):  # type: ignore[misc]
    pass


class SiftedDPO(SiftPairsMixin, WatchedDPO):
    pass


class WatchedReward(_Watched, RewardTrainer):  # type: ignore[misc]
    pass


class SiftedReward(SiftPairsMixin, WatchedReward):
    pass


def judge() -> Any:
    """A reward model."""
    config = llama().config
    config.num_labels = 1
    torch.manual_seed(0)
    return hf.LlamaForSequenceClassification(config)


def reference() -> Any:
    """Another model than the one that is trained, so that pairs differ in loss from the first step on."""
    made = llama()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return made


def make(
    folder: Path,
    kind: type[Any] = SiftedDPO,
    *,
    model: Any = None,
    sift: Any = None,
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    reward = issubclass(kind, RewardTrainer)
    config = RewardConfig if reward else DPOConfig
    sifting = {"sift": {"keep": 0.5, **(sift or {})}} if issubclass(kind, SiftPairsMixin) else {}
    extra = dict(extra or {})
    if not reward and "peft_config" not in extra:
        extra.setdefault("ref_model", reference())
    if model is None:
        model = judge() if reward else llama()
    return kind(
        model=model,
        args=config(output_dir=str(folder), **{**SETTINGS, **options}),
        train_dataset=pairs(),
        processing_class=tokenizer(),
        **sifting,
        **extra,
    )


def run(folder: Path, kind: type[Any] = SiftedDPO, *, resume: Any = None, **options: Any) -> Any:
    trainer = make(folder, kind, **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer
