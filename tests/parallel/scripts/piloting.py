"""An autopilot on two ranks: they look, decide and choose alike, and stay one model."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sifting import Sifter, Trial
from sifting.autopilot import deciding
from sifting.autopilot.looks import LookPlan
from tests.parallel.scripts.common import FEATURES, make_net, run

STEPS, BATCH = 120, 8


def draw(size: int, seed: int) -> tuple[Tensor, Tensor]:
    """Half of the samples are told apart by one feature, half only by a product of two."""
    stream = torch.Generator().manual_seed(seed)
    x = torch.randn(size, FEATURES, generator=stream).double()
    easy = torch.arange(size) % 2 == 0
    x[:, 0] = torch.where(easy, 3 * x[:, 0].sign(), 0.0)
    return x, torch.where(easy, x[:, 0] > 0, x[:, 1] * x[:, 2] > 0).long()


def everyones(value: Any) -> list[Any]:
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found


def go(*, shard: bool, early: bool = False) -> tuple[Sifter, list[Tensor]]:
    data = TensorDataset(*draw(480, seed=3))
    x, y = draw(200, seed=4)
    model: Any = make_net()
    trial = Trial(held_out=[(x, y)], updates=STEPS)
    sifter = Sifter(model, trial=trial, audit_every=7)  # before anything is made of the model
    if shard:
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    else:
        model = DDP(model)
    if not early:
        sifter = Sifter(model, trial=trial, audit_every=7)
    pilot = sifter.pilot
    assert pilot is not None
    pilot.held_out.plan_with = lambda size, there: LookPlan((20, 50, 90), there)
    pilot.pacing.cost = 0.01
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-2)
    sampler = DistributedSampler(data, seed=7)
    given, epoch = [], 0
    while sifter.step < STEPS:
        sampler.set_epoch(epoch)
        epoch += 1
        for inputs, labels in sifter(DataLoader(data, BATCH, sampler=sampler)):
            F.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            optimizer.zero_grad()
            given.append(inputs)
    return sifter, given


def check_ranks_decide_alike_and_stay_one_model() -> None:
    sifter, given = go(shard=False)
    assert sifter.pilot is not None
    made = [decision.to_plain() for decision in sifter.pilot.decisions]
    assert made, sifter.pilot.records
    assert everyones(made)[0] == made
    mine, theirs = everyones([p.detach().clone() for p in sifter.model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    weights = everyones(sifter.exit.state_dict()["scorers"]["input"])
    assert torch.equal(weights[0]["logits"]["weight"], weights[1]["logits"]["weight"])
    one, other = everyones(given)
    assert not all(torch.equal(a, b) for a, b in zip(one, other, strict=True))  # each its own data


def check_a_sifter_made_before_the_model_was_wrapped_decides_alike() -> None:
    for shard in (False, True):
        sifter, _ = go(shard=shard, early=True)
        assert sifter.pilot is not None
        assert sifter.chooser.scorer.ranks is not None
        made = [decision.to_plain() for decision in sifter.pilot.decisions]
        assert everyones(made)[0] == made
        looks = sifter.pilot.exit.looks
        assert looks == ("tuned" if shard else "input")
        learned = everyones(sifter.exit.state_dict()["scorers"][looks])
        assert torch.equal(learned[0]["logits"]["weight"], learned[1]["logits"]["weight"])


def check_a_sharded_model_is_looked_at_too() -> None:
    sifter, _ = go(shard=True)
    assert sifter.pilot is not None
    assert "input" in sifter.pilot.exit.refused
    assert sifter.pilot.exit.looks == "tuned"
    assert sifter.stats().held_out_seen == 600
    made = [decision.to_plain() for decision in sifter.pilot.decisions]
    assert everyones(made)[0] == made


def check_the_cost_is_settled_on_all_ranks_at_once() -> None:
    model = DDP(make_net())
    sifter = Sifter(model)
    assert sifter.pilot is not None
    data = TensorDataset(*draw(480, seed=3))
    for x, y in sifter(DataLoader(data, BATCH, sampler=DistributedSampler(data))):
        F.cross_entropy(model(x), y).backward()
        model.zero_grad()
        if sifter.step > 60:
            break
    assert sifter.pilot.pacing.cost is None or len(set(everyones(sifter.pilot.pacing.cost))) == 1


if __name__ == "__main__":
    # so that something is decided, however little is learned
    deciding.ENTER, deciding.LEAVE, deciding.GAIN = 0.1, 0.05, 0.5
    run(
        [
            check_ranks_decide_alike_and_stay_one_model,
            check_a_sifter_made_before_the_model_was_wrapped_decides_alike,
            check_a_sharded_model_is_looked_at_too,
            check_the_cost_is_settled_on_all_ranks_at_once,
        ]
    )
