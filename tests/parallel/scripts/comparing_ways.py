"""exit="auto" with a fixed ratio on two ranks, whose batches differ in length and labels."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import transformers as hf
from torch.nn.parallel import DistributedDataParallel as DDP

from sifting import Sifter
from sifting.exits import best, teaching
from sifting.exits.best import BestExit
from tests.helpers.models import SMALL
from tests.parallel.scripts.common import run


def everyones(value: Any) -> list[Any]:
    found: list[Any] = [None, None]
    dist.all_gather_object(found, value)
    return found


def _batches(count: int) -> list[dict[str, torch.Tensor]]:
    """Ranks would suggest other views and other numbers of positions."""
    rank = dist.get_rank()
    generator = torch.Generator().manual_seed(rank)
    found = []
    for step in range(count):
        length = 16 + 8 * ((step + 3 * rank) % 3)
        tokens = torch.randint(3, 64, (8, length), generator=generator)
        hidden = torch.rand(tokens.shape, generator=generator) < 0.15 + 0.3 * rank
        labels = tokens.where(hidden, torch.tensor(-100))
        found.append({"input_ids": tokens, "labels": labels})
    return found


def _compare(*, late: bool) -> None:
    torch.manual_seed(0)
    model = hf.BertForMaskedLM(hf.BertConfig(**SMALL))
    ddp = DDP(model)
    options: dict[str, Any] = {"keep": 0.5, "exit": "auto", "draws": "batch", "audit_every": 0}
    sifter = Sifter(model if late else ddp, **options)
    exit = sifter.exit
    assert isinstance(exit, BestExit)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    taught = []
    for batch in sifter(_batches(40)):
        ddp(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        taught.append((exit._pupils, exit._lessons, len(exit._learning), repr(exit)))
    assert any(learning for _, _, learning, _ in taught)
    heads = {
        way.name: [float(p.weight.double().sum()) for p in way.exit.predictors.values()]
        for way in exit.ways
        if way.exit.learns
    }
    first, second = everyones((taught, heads, [way.name for way in exit.ways]))
    assert first == second


def check_ranks_decide_and_learn_alike() -> None:
    _compare(late=False)


def check_they_do_where_the_wrapper_is_found_later() -> None:
    """By then each has found ways of its own."""
    _compare(late=True)


if __name__ == "__main__":
    best.FIRST, best.LATER, best.AGAIN = 4, 4, 24
    teaching.SHARE = 0.05
    run([check_ranks_decide_and_learn_alike, check_they_do_where_the_wrapper_is_found_later])
