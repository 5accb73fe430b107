"""LoRA adapters on a frozen model with gradient checkpointing: only the adapters are trained.

python examples/lora.py
"""

from __future__ import annotations

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

from sifting import Sifter

SIZES = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 4}


def main() -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (256, 12)).cumsum(dim=1) % 100
    data = [{"input_ids": row, "labels": row} for row in ids]
    loader = DataLoader(data, batch_size=32, shuffle=True)  # type: ignore[arg-type]

    base = LlamaForCausalLM(LlamaConfig(vocab_size=100, intermediate_size=64, **SIZES))
    base.gradient_checkpointing_enable()
    base.enable_input_require_grads()  # checkpointed blocks need an input that wants gradients
    adapters = LoraConfig("CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"])
    model = get_peft_model(base, adapters)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)

    sifter = Sifter(model, exit=2, score="entropy", keep=0.5)
    for _ in range(2):
        for batch in sifter(loader):
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print(sifter.stats())


if __name__ == "__main__":
    main()
