"""Two ranks keep a budget of tokens: each its own, or one that they divide."""

from __future__ import annotations

import random

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel as DDP

from sifting import Sifter
from sifting.data.lengths import token_counts
from sifting.reference import HeldOutReference
from tests.helpers.documents import TokenModel, documents, packed, padded
from tests.parallel.scripts.common import run
from tests.parallel.scripts.selecting import everyones

STEPS = 6


def texts(step: int) -> list[Tensor]:
    chance = random.Random(step)
    return documents([chance.randint(8, 90) for _ in range(48)], step)


def own(found: list[Tensor]) -> list[Tensor]:
    half = len(found) // 2
    return found[half:] if dist.get_rank() else found[:half]


def model_of() -> TokenModel:
    torch.manual_seed(1)
    return TokenModel()


def check_every_rank_is_within_its_own_budget() -> None:
    sifter = Sifter(DDP(model_of()), exit=1, score="loss", keep=0.5, budget="tokens")
    for step in range(STEPS):
        budget = sum(map(len, own(texts(step)))) / 2 + sifter.budget.carry
        kept = sifter.select(packed(own(texts(step)))).batch
        assert int(token_counts(kept).sum()) == pytest.approx(budget, rel=0.02)


def check_ranks_divide_the_choice_of_one_process() -> None:
    settings = {"exit": 1, "score": "loss", "keep": 0.5, "budget": "tokens", "tokens": "hardest"}
    settings |= {"explore": 0.25, "audit_every": 2}
    for laid_out in (packed, lambda found: padded(found, 96)):
        one = Sifter(model_of(), **settings)  # type: ignore[arg-type]
        two = Sifter(DDP(model_of()), scope="global", **settings)  # type: ignore[arg-type]
        for step in range(STEPS):
            budget = sum(map(len, texts(step))) / 2 + one.budget.carry
            whole = one.select(laid_out(texts(step)))
            mine = two.select(laid_out(own(texts(step))))
            shares = everyones((mine.indices.tolist(), token_counts(mine.batch).tolist()))
            assert sorted(i for found, _ in shares for i in found) == whole.indices.tolist()
            torch.testing.assert_close(mine.scores, whole.scores)
            for found, lengths in shares:  # what came is what was chosen
                assert lengths == [len(texts(step)[i]) for i in found]
                assert sum(lengths) == pytest.approx(budget / 2, rel=0.03)
            ids = mine.batch["input_ids"].flatten()
            wanted = torch.cat([texts(step)[i] for i in mine.indices.tolist()])
            mask = mine.batch.get(
                "attention_mask", torch.ones_like(mine.batch["input_ids"])
            ).flatten()
            assert torch.equal(ids[mask.bool()], wanted)
        assert one.budget.carry == two.budget.carry
        a, b = one.stats(), two.stats(reduce=True)
        assert a.tokens_trained == b.tokens_trained
        assert a.rho_tokens == pytest.approx(b.rho_tokens, rel=1e-5)


def check_a_reference_is_taken_off_on_both() -> None:
    held_out = [padded(documents([9] * 16, seed), 96) for seed in range(90, 94)]
    settings = {"exit": "last", "score": "reducible", "keep": 0.5}
    one = Sifter(model_of(), reference=HeldOutReference(held_out), **settings)  # type: ignore[arg-type]
    two = Sifter(
        DDP(model_of()),
        reference=HeldOutReference(held_out),
        scope="global",
        **settings,  # type: ignore[arg-type]
    )
    whole = one.select(padded(texts(0), 96))
    mine = two.select(padded(own(texts(0)), 96))
    assert torch.equal(torch.cat(everyones(mine.indices)), whole.indices)


if __name__ == "__main__":
    run(
        [
            check_every_rank_is_within_its_own_budget,
            check_ranks_divide_the_choice_of_one_process,
            check_a_reference_is_taken_off_on_both,
        ]
    )
