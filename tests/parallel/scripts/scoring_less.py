"""rows= and view= on two ranks: the choice of one process, and ranks that draw positions in step."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel as DDP

from sifting import Sifter
from tests.parallel.scripts.common import Block, run

STEPS, SIZE, LENGTH, WORDS = 4, 8, 12, 20


class Tagger(nn.Module):
    """A class for each position; nothing in it mixes samples."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 8)
        self.blocks = nn.ModuleList([Block(8) for _ in range(3)])
        self.head = nn.Linear(8, WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)
        for block in self.blocks:
            hidden = block(hidden)
        return self.head(hidden)


def make() -> Tagger:
    torch.manual_seed(1)
    return Tagger().double()


def batches(ranks: slice) -> list[Any]:
    """Candidates of some of the ranks together, a part of their positions labelled."""
    generator = torch.Generator().manual_seed(5)
    found = []
    for _ in range(STEPS):
        tokens = torch.randint(0, WORDS, (2 * SIZE, LENGTH), generator=generator)
        labels = tokens.roll(1, dims=1)
        labels[torch.rand(labels.shape, generator=generator) < 0.4] = -100
        found.append((tokens[ranks], labels[ranks]))
    return found


def mine() -> slice:
    return slice(dist.get_rank() * SIZE, (dist.get_rank() + 1) * SIZE)


def everyones(value: Any) -> list[Any]:
    found: list[Any] = [None, None]
    dist.all_gather_object(found, value)
    return found


def train(model: nn.Module, sifter: Sifter, loader: Any) -> list[Any]:
    """What each step kept, and the scores that it went by."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    found = []
    for tokens, labels in sifter(loader):
        selection = sifter.observer.current.selection  # type: ignore[union-attr]
        assert selection is not None
        found.append((tokens.clone(), selection.scores))
        loss = F.cross_entropy(model(tokens).flatten(0, 1), labels.flatten(), reduction="none")
        (loss.view_as(labels).sum(dim=1) / 8).mean().backward()  # each sample counts alike
        optimizer.step()
        optimizer.zero_grad()
    return found


COMMON: dict[str, Any] = {"exit": 1, "score": "loss", "audit_every": 0, "draws": "batch", "seed": 3}


def check_what_is_seen_of_each_is_that_of_one_process() -> None:
    for less in ({"view": 7}, {"rows": "labelled"}, {"view": 9, "rows": "labelled"}):
        alone, model = make(), make()
        want = train(alone, Sifter(alone, **COMMON, **less), batches(slice(None)))
        ddp = DDP(model)
        got = train(ddp, Sifter(ddp, scope="global", **COMMON, **less), batches(mine()))
        for (tokens, scores), (own, joined) in zip(want, got, strict=True):
            assert torch.equal(torch.cat(everyones(own)), tokens), less
            torch.testing.assert_close(joined, scores)
        for a, b in zip(alone.parameters(), model.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def check_positions_are_drawn_in_step() -> None:
    for scope in ("rank", "global"):
        model = make()
        ddp = DDP(model)
        sifter = Sifter(ddp, scope=scope, rows=3, **COMMON)
        got = train(ddp, sifter, batches(mine()))
        first, last = everyones(sifter._generator.get_state())
        assert torch.equal(first, last), scope
        weights = everyones([p.detach() for p in model.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True)), scope
        # the first step's, by a sifter that is alone with this rank's candidates
        lone = Sifter(make(), rows=3, **COMMON).select(batches(mine())[0]).scores
        own = got[0][1][mine()] if scope == "global" else got[0][1]
        assert torch.equal(own, lone), scope
        whole = Sifter(make(), **COMMON).select(batches(mine())[0]).scores
        assert not torch.allclose(own, whole), scope


if __name__ == "__main__":
    run([check_what_is_seen_of_each_is_that_of_one_process, check_positions_are_drawn_in_step])
