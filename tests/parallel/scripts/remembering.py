"""A memory that two ranks feed: what one has trained, the other knows."""

from __future__ import annotations

import copy
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from sifting import MemoryExit, Sifter
from sifting.exits.memory import SHARE_EVERY
from sifting.measure.audit import Auditor
from tests.parallel.scripts.common import CLASSES, FEATURES, make_net, run

SAMPLES, BATCH = 96, 4


class Counted(Dataset[Any]):
    """Remembers which of its samples were read."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(SAMPLES, FEATURES, generator=generator).double()
        self.y = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
        self.read: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        self.read.append(index)
        return self.x[index], self.y[index], index


def train(
    epochs: int, stop: int | None = None, resumed: dict[str, Any] | None = None, **settings: Any
) -> tuple[Sifter, Counted, list[list[int]]]:
    data, model = Counted(), DDP(make_net())
    sampler = DistributedSampler(data, seed=7)
    loader = DataLoader(data, BATCH, sampler=sampler)
    sifter = Sifter(model, exit=MemoryExit(), **{"audit_every": 0, "ids": 2, **settings})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen: list[list[int]] = []
    first = 0
    if resumed is not None:
        model.load_state_dict(resumed["model"])
        sifter.load_state_dict(resumed["sifter"])
        first = sifter.step // len(loader)
    for epoch in range(first, epochs):
        sampler.set_epoch(epoch)
        for x, y, index in sifter(loader):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            seen.append(index.tolist())
            if len(seen) == stop:
                return sifter, data, seen
    return sifter, data, seen


def everyones(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def check_what_one_rank_has_trained_the_others_know() -> None:
    sifter, data, seen = train(epochs=4)
    assert len(seen) == 4 * SAMPLES // BATCH // 2
    assert len(seen) % SHARE_EVERY == 8
    mine, theirs = everyones(sifter.exit.state_dict()["losses"])
    known = [
        set(range(SAMPLES)) - set(t.isnan().nonzero().flatten().tolist()) for t in (mine, theirs)
    ]
    shared = everyones([i for ids in seen[: len(seen) // SHARE_EVERY * SHARE_EVERY] for i in ids])
    for rank in range(2):
        assert set(shared[0]) | set(shared[1]) <= known[rank]
    # a sample that neither has trained since they last talked is remembered alike
    late = {i for ids in everyones(seen[-8:]) for step in ids for i in step}
    old = sorted(known[0] & known[1] - late)
    assert old
    torch.testing.assert_close(mine[old], theirs[old])
    assert data.read == [i for ids in seen for i in ids]  # and what was dropped was never read


def check_a_choice_by_all_ranks_is_made_before_anything_is_read() -> None:
    sifter, data, seen = train(epochs=3, keep=0.25, scope="global")
    assert [len(ids) for ids in seen] == [BATCH] * (3 * SAMPLES // BATCH // 2)
    assert data.read == [i for ids in seen for i in ids]
    step = sifter.observer.current
    assert step is not None
    assert step.selection is not None
    assert len(step.selection.scores) == 2 * 4 * BATCH
    scores = everyones(step.selection.scores)
    assert torch.equal(scores[0], scores[1])
    kept = torch.cat(everyones(step.selection.indices))
    best = scores[0].topk(2 * BATCH).values.min()
    assert bool((scores[0][kept] >= best).all())


def check_audits_judge_the_choice_of_all_ranks() -> None:
    # 8 of 16 candidates: of the 4 that a rank trains, some are the other's
    for settings in ({}, {"explore": 0.5}):
        with patch.object(Auditor, "judge", autospec=True, side_effect=Auditor.judge) as spy:
            sifter, data, seen = train(epochs=2, scope="global", audit_every=3, **settings)
        judged = [call.kwargs for call in spy.call_args_list]
        assert sifter.stats().audits == len(seen) // 3 == len(judged) > 3
        _, _, unaudited = train(epochs=2, scope="global", **settings)
        assert seen == unaudited
        begin, others = 0, 0
        for step, trained in enumerate(seen):
            if step % 3 != 2:
                assert data.read[begin : begin + BATCH] == trained
                begin += BATCH
                continue
            own, last = data.read[begin : begin + 2 * BATCH], judged[step // 3]
            others += len(set(trained) - set(own))
            begin += 2 * BATCH + len(set(trained) - set(own))
            candidates = [i for ids in everyones(own) for i in ids]
            assert last["step"] == step
            assert len(last["exact_B"]) == len(last["scores_B"]) == len(candidates) == 4 * BATCH
            kept = [candidates[i] for i in last["indices_K"].tolist()]
            assert sorted(kept) == sorted(i for ids in everyones(trained) for i in ids)
            exact = everyones(last["exact_B"])
            assert torch.equal(exact[0], exact[1])
            assert len(exact[0].unique()) == len(set(candidates))  # each candidate's own
        assert begin == len(data.read)
        assert sum(everyones(others)) > 0


def check_it_goes_on_as_if_never_stopped() -> None:
    _, _, want = train(epochs=3)
    for stop in (17, 2 * SHARE_EVERY):  # between two exchanges, and just before one
        sifter, _, seen = train(epochs=3, stop=stop)
        state = {"model": sifter.model.state_dict(), "sifter": sifter.state_dict()}
        assert state["sifter"]["exit"]["steps"] == stop
        assert len(state["sifter"]["exit"]["untold_ids"]) == stop - SHARE_EVERY
        _, data, rest = train(epochs=3, resumed=copy.deepcopy(state))
        assert seen + rest == want
        assert data.read == [i for ids in rest for i in ids]


if __name__ == "__main__":
    run(
        [
            check_what_one_rank_has_trained_the_others_know,
            check_a_choice_by_all_ranks_is_made_before_anything_is_read,
            check_audits_judge_the_choice_of_all_ranks,
            check_it_goes_on_as_if_never_stopped,
        ]
    )
