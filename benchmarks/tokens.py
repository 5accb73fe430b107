"""Which way of weighing a document's tokens keeps most of the loss, for as many tokens trained?

    OMP_NUM_THREADS=1 python benchmarks/tokens.py --updates 600 --seeds 0 1 2

Trains a small Llama by bytes on half of the paragraphs of Python's own documentation, and asks of the
other half, at some updates: of all their loss, how much would be in the half of the tokens that each
way of weighing chooses (μ), at each exit? Half is in tokens (`budget="tokens"`), or in documents: then
the share of the loss is divided by the share of the tokens, as for μ it is by a half.
"""

from __future__ import annotations

import argparse
import pydoc_data.topics
import re

import torch
import transformers as hf
from torch import Tensor

from sifting import Sifter
from sifting.data.lengths import token_counts
from sifting.exits import make_exit
from sifting.measure.kept_loss import kept_loss
from sifting.measure.quality import rho_tokens
from sifting.selection.tokens import BY_NAME, SumOfTokens

LONGEST, SHORTEST, BATCH = 256, 16, 16
EXITS = (1, "tuned", "last")


def paragraphs() -> list[Tensor]:
    """Each a document, in bytes."""
    text = "\n\n".join(pydoc_data.topics.topics.values())
    found = dict.fromkeys(part.strip() for part in re.split(r"\n\s*\n", text))
    whole = [torch.tensor(list(part.encode()[:LONGEST])) for part in found]
    return [one for one in whole if len(one) >= SHORTEST]


def padded(documents: list[Tensor]) -> dict[str, Tensor]:
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "input_ids": pad(documents, batch_first=True),
        "attention_mask": pad([torch.ones_like(one) for one in documents], batch_first=True),
        "labels": pad(documents, batch_first=True, padding_value=-100),
    }


def llama() -> hf.LlamaForCausalLM:
    return hf.LlamaForCausalLM(
        hf.LlamaConfig(
            vocab_size=256,
            hidden_size=96,
            intermediate_size=256,
            num_hidden_layers=4,
            num_attention_heads=4,
            max_position_embeddings=LONGEST,
        )
    )


def measure(model: hf.LlamaForCausalLM, tuned: dict, batches: list[dict[str, Tensor]]) -> dict:
    """By exit and way: μ at half of the tokens, and ρ by token at half of the documents."""
    lengths = torch.cat([token_counts(batch) for batch in batches])
    exact = Sifter(model, exit="last", score="loss", keep=0.5, tokens=SumOfTokens())
    sums = torch.cat([exact.score(batch) for batch in batches])
    found = {}
    for exit in EXITS:
        for name, way in BY_NAME.items():
            made = make_exit(exit)
            sifter = Sifter(model, exit=made, score="loss", keep=0.5, tokens=way, budget="tokens")
            if exit == "tuned":
                made.load_state_dict(tuned)
            budget, call = sifter.budget, sifter._scorer.call
            by_batch = [sifter.score(batch) for batch in batches]
            worth = [
                budget.per_cost(found_B, token_counts(batch), batch, call)
                for found_B, batch in zip(by_batch, batches, strict=True)
            ]
            values = torch.cat(by_batch)
            half = values.argsort(descending=True)[: len(values) // 2]
            mu = kept_loss(torch.cat(worth), sums, 2, costs_B=lengths)
            found[exit, name] = mu, rho_tokens(sums, lengths, half)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--looks", type=int, default=2)
    args = parser.parse_args()
    documents = paragraphs()
    kept: dict = {}
    for seed in args.seeds:
        torch.manual_seed(seed)
        order = torch.randperm(len(documents)).tolist()
        train = [documents[i] for i in order[: len(order) // 2]]
        test = [documents[i] for i in order[len(order) // 2 :]][:256]
        batches = [padded(test[i : i + 64]) for i in range(0, len(test), 64)]
        model = llama()
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        exit = make_exit("tuned")
        tuning = Sifter(model, exit=exit, score="loss", keep=0.5)
        for update in range(args.updates):
            rows = torch.randint(len(train), (BATCH,)).tolist()
            batch = padded([train[i] for i in rows])
            tuning.select(batch)  # the exit learns from it; all of it is trained
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if (update + 1) % (args.updates // args.looks) == 0:
                for key, values in measure(model, exit.state_dict(), batches).items():
                    kept.setdefault((update + 1, *key), []).append(values)
        print(f"seed {seed}: {len(train)} documents trained, {len(test)} looked at", flush=True)
    print(
        "| update | exit | tokens= | μ at half of the tokens | ρ by token at half of the documents |"
    )
    print("| --- | --- | --- | --- | --- |")
    for (update, place, name), values in kept.items():
        columns = [
            torch.tensor(column, dtype=torch.float64) for column in zip(*values, strict=True)
        ]
        shown = " | ".join(
            f"{float(c.mean()):.3f}" + (f" ± {float(c.std()):.3f}" if len(c) > 1 else "")
            for c in columns
        )
        print(f"| {update} | {place} | {name} | {shown} |")


if __name__ == "__main__":
    main()
