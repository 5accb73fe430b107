"""ahead=1 on two ranks: the thread talks to nobody, and choices are those of weights one update old."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel as DDP

from sifting import Sifter
from tests.parallel.scripts.common import candidates, make_net, part, run

STEPS = 6


def train(*, late: bool, **options: Any) -> tuple[list[Any], int]:
    """What each step trained and its loss; and how many choices were scored beside a step.

    Args:
        late: whether candidates are scored in the loop, by weights that are one update old.
    """
    net = make_net()
    model = DDP(net)
    sifter = Sifter(model, ahead=1, draws="batch", audit_every=0, **options)
    assert sifter.beside is not None
    old, score, beside = copy.deepcopy(net), sifter._scorer.scores, 0
    if late:
        sifter.beside.begin = lambda: None  # type: ignore[method-assign]

    def scores(batch: Any, *, learn: bool, ids: Any = None) -> Tensor | None:
        nonlocal beside
        assert sifter.beside is not None
        waiting = sifter.beside.ahead
        beside += waiting is not None and waiting.future is not None
        if not late or sifter.step < 2:
            return score(batch, learn=learn)
        now = copy.deepcopy(net.state_dict())
        net.load_state_dict(old.state_dict())
        found = score(batch, learn=learn)
        net.load_state_dict(now)
        return found

    sifter._scorer.scores = scores  # type: ignore[method-assign]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
    found: list[Any] = []
    for x, y in sifter([part(candidates(step)) for step in range(STEPS)]):
        old.load_state_dict(net.state_dict())
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append((x.tolist(), y.tolist(), loss.item()))
    return found, beside


def check_tuned_exits_learn_together() -> None:
    found, beside = train(late=False, exit="tuned")
    assert found == train(late=True, exit="tuned")[0]
    assert beside == STEPS - 2


def check_ranks_choose_together() -> None:
    options = {"exit": 2, "score": "loss", "scope": "global"}
    found, beside = train(late=False, **options)
    assert found == train(late=True, **options)[0]
    assert beside == STEPS - 2
    everyones: list[Any] = [None, None]
    dist.all_gather_object(everyones, len(found))
    assert everyones == [STEPS, STEPS]


if __name__ == "__main__":
    run([check_tuned_exits_learn_together, check_ranks_choose_together])
