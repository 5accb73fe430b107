"""Supervised fine-tuning of a Llama with LoRA on JSON lines, {"prompt": …, "completion": …} each.

python examples/sft_lora.py --model meta-llama/Llama-3.2-1B --data mine.jsonl --steps 1000
python examples/sft_lora.py      # a tiny model on sums that it makes up: seconds, no network
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from peft import LoraConfig
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig

from sifting.integrations.trl import SiftSFTTrainer


def made_up(folder: Path) -> tuple[Any, Any, Path]:
    """A tiny model, its tokenizer, and sums to learn."""
    torch.manual_seed(0)
    rows = [(f"{a} + {b} =", f" {a + b}") for a in range(16) for b in range(16)]
    words = ["<pad>", "<eos>", "<unk>", "+", "=", *map(str, range(32))]
    found = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
    found.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(words), num_hidden_layers=4, pad_token_id=0, **sizes)
    data = folder / "sums.jsonl"
    lines = [json.dumps({"prompt": question, "completion": answer}) for question, answer in rows]
    data.write_text("\n".join(lines))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=found, **names)
    return LlamaForCausalLM(config), tokenizer, data


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", help="a name on the Hub, or a folder")
    parser.add_argument("--data", type=Path, help="a file of JSON lines")
    parser.add_argument("--steps", type=int, default=10)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer, data = asked.model, None, asked.data
        if model is None or data is None:
            model, tokenizer, data = made_up(Path(folder))
        rows = load_dataset("json", data_files=str(data), split="train", cache_dir=folder)
        parts = rows.train_test_split(test_size=0.1, seed=0)
        trainer = SiftSFTTrainer(
            model=model,
            args=SFTConfig(
                output_dir=folder,
                per_device_train_batch_size=8,  # what is trained
                max_steps=asked.steps,
                learning_rate=1e-2 if asked.model is None else 2e-4,
                save_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=not torch.cuda.is_available(),
                bf16=torch.cuda.is_available(),
            ),
            train_dataset=parts["train"],
            eval_dataset=parts["test"],
            processing_class=tokenizer,
            peft_config=LoraConfig("CAUSAL_LM", r=8, target_modules=["q_proj", "v_proj"]),
            sift={"exit": 2, "score": "loss", "keep": 0.5},
        )
        trainer.train()
        print(trainer.evaluate()["eval_loss"])
    print(trainer.sifter.stats())


if __name__ == "__main__":
    main()
