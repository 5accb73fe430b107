"""A sentence classifier, fine-tuned by the Trainer on JSON lines, {"text": …, "label": 0} each.

python examples/sentences.py --model google-bert/bert-base-uncased --data mine.jsonl --epochs 3
python examples/sentences.py      # a tiny model on sentences that it makes up: seconds, no network
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers as hf
from datasets import load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers

from sifting.integrations.trainer import SiftTrainer

WORDS = ["never", "hardly", "good", "fine", "bad", "poor", "the", "soup", "room", "tea", "is"]


def made_up(folder: Path) -> tuple[Any, Any, Path]:
    """A tiny model, its tokenizer, and sentences: is one praise, or the contrary?"""
    torch.manual_seed(0)
    draw, rows = random.Random(0), []
    for _ in range(320):
        denied, mark = draw.random() < 0.5, draw.randrange(2, 6)
        first = WORDS[draw.randrange(2)] if denied else "the"
        said = " ".join([first, *draw.choices(WORDS[6:], k=5), WORDS[mark]])
        rows.append(json.dumps({"text": said, "label": int((mark < 4) != denied)}))
    (folder / "sentences.jsonl").write_text("\n".join(rows))
    words = {word: i for i, word in enumerate(["[PAD]", "[UNK]", *WORDS])}
    found = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}
    config = hf.BertConfig(vocab_size=len(words), intermediate_size=64, **sizes)
    tokenizer = hf.PreTrainedTokenizerFast(tokenizer_object=found, pad_token="[PAD]")
    return hf.BertForSequenceClassification(config), tokenizer, folder / "sentences.jsonl"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a name on the Hub, or a folder")
    parser.add_argument("--data", type=Path, help="a file of JSON lines")
    parser.add_argument("--epochs", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer, data = None, None, asked.data
        if asked.model is None or data is None:
            model, tokenizer, data = made_up(Path(folder))
        rows = load_dataset("json", data_files=str(data), split="train", cache_dir=folder)
        if model is None:
            kind, count = hf.AutoModelForSequenceClassification, len(set(rows["label"]))
            model = kind.from_pretrained(asked.model, num_labels=count)
            tokenizer = hf.AutoTokenizer.from_pretrained(asked.model)
        rows = rows.map(lambda row: tokenizer(row["text"], truncation=True))
        trainer = SiftTrainer(
            model=model,
            args=hf.TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=16,  # what is trained
                num_train_epochs=asked.epochs,
                learning_rate=1e-3 if asked.model is None else 2e-5,
                save_strategy="no",
            ),
            train_dataset=rows,
            processing_class=tokenizer,
            sift={"exit": 1, "score": "loss", "keep": 0.5},
        )
        trainer.train()
    print(trainer.sifter.stats())


if __name__ == "__main__":
    main()
