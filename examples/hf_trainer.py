"""Hugging Face's Trainer: draw 32 candidates a step, train the 16 with the highest loss.

python examples/hf_trainer.py
"""

from __future__ import annotations

import tempfile

import torch
from torch.utils.data import TensorDataset
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments

from sifting.integrations.trainer import SiftTrainer

SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}


def collate(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, torch.Tensor]:
    ids, labels = zip(*rows, strict=True)
    return {"input_ids": torch.stack(ids), "labels": torch.stack(labels)}


def main() -> None:
    torch.manual_seed(0)
    ids = torch.randint(5, 100, (256, 8))
    labels = (ids[:, 1] > 50).long()  # to be learned: whether the second token is a high one
    config = BertConfig(vocab_size=100, intermediate_size=64, num_labels=2, **SIZES)
    with tempfile.TemporaryDirectory() as folder:
        trainer = SiftTrainer(
            model=BertForSequenceClassification(config),
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=16,  # what is trained
                num_train_epochs=3,
                learning_rate=1e-3,
                logging_steps=16,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                dataloader_pin_memory=False,
            ),
            data_collator=collate,
            train_dataset=TensorDataset(ids, labels),
            sift={"exit": 1, "score": "loss", "keep": 0.5, "warmup_steps": 8},
        )
        trainer.train()
    print(trainer.sifter.stats())


if __name__ == "__main__":
    main()
