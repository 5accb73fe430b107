"""Runs of TRL's SFTTrainer on a tiny Llama, remembered step by step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers as hf
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from trl import SFTConfig, SFTTrainer

from sifting.integrations.trl import SiftSFTMixin

WORDS = 60
PAPER = {"exit": 1, "score": "loss", "keep": 0.5}
CHAT = (
    "{% for message in messages %}{{ message['role'] }} "
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }} <eos> "
    "{% endgeneration %}{% else %}{{ message['content'] }} {% endif %}{% endfor %}"
)


def tokenizer() -> Any:
    words = ["<pad>", "<eos>", "<unk>", "user", "assistant", *(f"w{i}" for i in range(WORDS))]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=made, chat_template=CHAT, **special)


def llama(kind: Any = hf.LlamaForCausalLM, *, layers: int = 3) -> Any:
    torch.manual_seed(0)
    return kind(
        hf.LlamaConfig(
            vocab_size=WORDS + 5,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=layers,
            num_attention_heads=2,
            max_position_embeddings=64,
            initializer_range=0.3,  # so that samples differ
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=1,
        )
    )


def data(count: int = 64, *, chat: bool = False) -> Any:
    """Prompts and completions of different lengths, or conversations."""
    generator = torch.Generator().manual_seed(0)

    def words(least: int, most: int) -> str:
        size = int(torch.randint(least, most, (1,), generator=generator))
        numbers = torch.randint(WORDS, (size,), generator=generator).tolist()
        return " ".join(f"w{i}" for i in numbers)

    rows = [{"prompt": words(2, 5), "completion": " " + words(2, 9)} for _ in range(count)]
    if not chat:
        return Dataset.from_list(rows)
    turns = (("user", "prompt"), ("assistant", "completion"))
    return Dataset.from_list(
        [
            {"messages": [{"role": role, "content": row[part].strip()} for role, part in turns]}
            for row in rows
        ]
    )


def documents_of(rows: list[list[int]]) -> list[tuple[int, ...]]:
    """Samples of a batch of any layout: what stands before each end of text, without padding."""
    found: list[tuple[int, ...]] = []
    for row in rows:
        part: list[int] = []
        for token in row:
            part.append(token)
            if token == 1:
                found.append(tuple(part))
                part = []
    return found


class Watched(SFTTrainer):  # type: ignore[misc]
    """Remembers what each step trained, and its loss."""

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(self, "seen"):
            self.seen, self.losses = [], []
        self.seen.append(inputs["input_ids"].tolist())
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.losses.append(loss.item())
        return loss


class Sifted(SiftSFTMixin, Watched):
    pass


def make(
    folder: Path,
    kind: type[Any] = Sifted,
    *,
    model: Any = None,
    rows: Any = None,
    sift: Any = None,
    extra: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    settings = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 4,
        "max_steps": 4,
        "max_length": 16,
        "learning_rate": 1e-2,
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "save_strategy": "no",
        "dataloader_pin_memory": False,
        "gradient_checkpointing": False,
        **options,
    }
    sifting = {"sift": {**PAPER, **(sift or {})}} if issubclass(kind, SiftSFTMixin) else {}
    return kind(
        model=llama() if model is None else model,
        args=SFTConfig(**settings),
        train_dataset=data() if rows is None else rows,
        processing_class=tokenizer(),
        **sifting,
        **(extra or {}),
    )


def to_ask(seed: int) -> Any:
    """A trainer without data to judge by, for `sift reference`."""
    return make(Path("nowhere"), Watched, seed=seed)


def run(
    folder: Path, kind: type[Any] = Sifted, *, resume: str | None = None, **options: Any
) -> Any:
    trainer = make(folder, kind, **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer
