"""Continued pretraining of a causal model on a folder of text files, packed into full rows.

python examples/pretrain_folder.py --model Qwen/Qwen3-0.6B --data corpus/ --steps 2000
python examples/pretrain_folder.py      # a tiny model on the source of Python's argparse: seconds
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig

from sifting.integrations.trl import SiftSFTTrainer


def made_up(folder: Path) -> tuple[Any, Any, Path]:
    """A tiny model that reads bytes, and some lines of text."""
    torch.manual_seed(0)
    lines = Path(argparse.__file__).read_text().splitlines()
    data = folder / "text"
    data.mkdir()
    for number in range(32):
        (data / f"{number}.txt").write_text("\n".join(lines[40 * number :][:40]))
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = {word: i for i, word in enumerate(["<pad>", "<eos>", *letters])}
    found = Tokenizer(models.BPE(vocab=words, merges=[]))
    found.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(words), num_hidden_layers=4, pad_token_id=0, **sizes)
    names = {"pad_token": "<pad>", "eos_token": "<eos>"}
    return LlamaForCausalLM(config), PreTrainedTokenizerFast(tokenizer_object=found, **names), data


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a name on the Hub, or a folder")
    parser.add_argument("--data", type=Path, help="a folder of text files")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--length", type=int, default=64, help="tokens in a row")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer, data = asked.model, None, asked.data
        if model is None or data is None:
            model, tokenizer, data = made_up(Path(folder))
        files = {"data_dir": str(data), "split": "train", "cache_dir": folder}
        trainer = SiftSFTTrainer(
            model=model,
            args=SFTConfig(
                output_dir=folder,
                per_device_train_batch_size=8,  # rows that are trained
                max_steps=asked.steps,
                max_length=asked.length,
                packing=True,
                packing_strategy="wrapped",  # rows of running text, and nothing is cut off
                learning_rate=1e-2 if asked.model is None else 2e-5,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=not torch.cuda.is_available(),
                bf16=torch.cuda.is_available(),
            ),
            train_dataset=load_dataset("text", **files),
            processing_class=tokenizer,
            sift={"exit": 2, "score": "loss", "keep": 0.5},
        )
        trainer.train()
    print(trainer.sifter.stats())


if __name__ == "__main__":
    main()
