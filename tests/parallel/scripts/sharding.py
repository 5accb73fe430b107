"""Scoring a model that fully_shard has spread over two ranks."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.nn.parallel import DistributedDataParallel as DDP

from sifting import AdditiveExit, MemoryExit, Sifter, TunedExit
from tests.parallel.scripts.common import candidates, differ, full, make_net, part, run, train


def shard(model: nn.Module, blocks: Any, *apart: nn.Module, **root: Any) -> nn.Module:
    """Each block for itself, `apart` too, and the rest with the root."""
    mesh = init_device_mesh("cpu", (2,))
    for module in (*blocks, *apart):
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh, **root)
    return model


@contextmanager
def counting_gathers(model: nn.Module) -> Iterator[Counter[str]]:
    """By path of the module, how often its parameters are gathered."""
    paths = {module: path or "root" for path, module in model.named_modules()}
    counted: Counter[str] = Counter()
    unshard = FSDPParamGroup.unshard

    def count(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.is_unsharded and self._all_gather_result is None:
            counted[paths[self.modules[0]]] += 1
        return unshard(self, *args, **kwargs)

    FSDPParamGroup.unshard = count
    try:
        yield counted
    finally:
        FSDPParamGroup.unshard = unshard


def check_sharded_training_is_that_of_ddp() -> None:
    for settings, root in (
        ({"exit": 1, "score": "loss"}, {}),
        ({"exit": 2, "score": "entropy", "explore": 0.5, "warmup_steps": 3}, {}),
        ({"exit": TunedExit(1, lr=0.05), "score": "loss"}, {"reshard_after_forward": True}),
    ):
        for scope in ("rank", "global"):
            ddp, net = DDP(make_net()), make_net()
            fsdp = shard(net, net.blocks, **root)
            found = []
            for model in (ddp, fsdp):
                sifter = Sifter(
                    model, scope=scope, audit_every=2, keep=0.5, **copy.deepcopy(settings)
                )
                data = [part(candidates(step)) for step in range(6)]
                found.append([*train(model, iter(sifter(data))), sifter.stats().rho_approx])
            assert found[0] == pytest.approx(found[1], rel=1e-6), (settings, scope)
            assert differ(ddp, fsdp) < 1e-6


def check_a_memory_is_fed_by_a_sharded_model() -> None:
    def numbers(batch: Any) -> Tensor:
        return (batch[0][:, 0].abs() * 10).long().clamp_max(39)  # of the sample itself

    found = []
    for wrap in (DDP, lambda net: shard(net, net.blocks)):
        model = wrap(make_net())
        exit = MemoryExit(40)
        sifter = Sifter(model, exit=exit, ids=numbers, score="loss", audit_every=2, warmup_steps=3)
        data = [part(candidates(step)) for step in range(6)]
        losses = train(model, iter(sifter(data)))
        known_N = exit.state_dict()["losses"]
        assert bool((~known_N.isnan()).any())
        other = [torch.empty_like(known_N) for _ in range(2)]
        dist.all_gather(other, known_N)
        assert not torch.equal(other[0].isnan(), other[1].isnan())
        found.append([*losses, *known_N.nan_to_num(-1.0).tolist(), sifter.stats().rho_approx])
    assert found[0] == pytest.approx(found[1], rel=1e-5)


def check_scoring_gathers_only_what_it_runs() -> None:
    net = make_net()
    model = shard(net, net.blocks)
    for exit, blocks in ((1, 1), (3, 3), (TunedExit(2), 2), ("last", 4)):
        sifter = Sifter(model, exit=exit, score="loss")
        sifter.chooser.check(part(candidates(0)))
        train(model, iter([part(candidates(1))]))  # its backward frees what is gathered
        with counting_gathers(model) as counted:
            sifter.score(part(candidates(2)))
        wanted = {"root": 1, **{f"blocks.{i}": 1 for i in range(blocks)}}
        assert counted == wanted, (exit, counted)
        # and the training step after it gathers what it always does, the root already there
        with counting_gathers(model) as after:
            train(model, iter([part(candidates(1))]))
        with counting_gathers(model) as alone:
            train(model, iter([part(candidates(1))]))
        assert after["root"] == alone["root"] - 1
        assert after - Counter(root=9) == alone - Counter(root=9)


def check_a_rank_without_labels_stays_in_step() -> None:
    net = make_net()
    model = shard(net, net.blocks)
    sifter = Sifter(model, exit=TunedExit(1), score="loss", audit_every=1)
    for step in range(3):
        x, y = part(candidates(step))
        if dist.get_rank() == 0 and step != 1:
            y = torch.full_like(y, -100)
        with torch.no_grad():
            sifter.select((x, y))
    weight = sifter.exit.predictors["logits"].weight.detach()
    other = [torch.empty_like(weight) for _ in range(2)]
    dist.all_gather(other, weight)
    assert torch.equal(other[0], other[1])
    assert float(weight.abs().max()) > 0


class MaskedModel(nn.Module):
    """A transformer encoder with a vocabulary head, and buffers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True) for _ in range(3)
        )
        self.decoder = nn.Sequential(nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 50))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        self.seen += 1
        hidden = self.embed(input_ids)
        for layer in self.layers:
            hidden = layer(hidden)
        logits = self.decoder(hidden)
        if labels is None:
            return {"logits": logits}
        return {
            "loss": nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()),
            "logits": logits,
        }


def masked_batch() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(dist.get_rank())
    ids = torch.randint(0, 50, (6, 8), generator=generator)
    chosen = torch.rand(6, 8, generator=generator) < 0.2 * (1 + dist.get_rank())
    chosen[:, 0] = True
    return {"input_ids": ids, "labels": ids.masked_fill(~chosen, -100)}


def check_heads_run_where_labels_are() -> None:
    freed = {"reshard_after_forward": True}
    for exit, apart, root, kept_head in (
        (1, None, freed, True),
        (TunedExit(2), None, {}, True),
        (TunedExit(2), "decoder", freed, True),
        ("last", "decoder.2", {}, False),
    ):
        torch.manual_seed(0)
        plain = MaskedModel()
        model = copy.deepcopy(plain)
        shard(model, model.layers, *([model.get_submodule(apart)] if apart else []), **root)
        wanted = Sifter(plain, exit=copy.deepcopy(exit), score="loss", audit_every=1)
        sifter = Sifter(model, exit=exit, score="loss", audit_every=1)
        batch = masked_batch()
        torch.testing.assert_close(sifter.score(batch), wanted.score(batch), atol=1e-5, rtol=1e-5)
        before = {name: full(p).clone() for name, p in model.named_parameters()}
        for _ in range(2):
            sifter.select(batch)
        assert bool(sifter.chooser.scorer.plan.heads) == kept_head
        assert int(model.seen) == 0
        after = dict(model.named_parameters())
        assert all(torch.equal(full(after[name]), value) for name, value in before.items())
        model(**sifter.select(batch).batch)["loss"].backward()
    torch.manual_seed(0)
    model = MaskedModel()
    shard(model, model.layers, model.decoder[2])
    # a head that cannot be run on its own is predicted by one of the exit's
    assert Sifter(model, exit=TunedExit(1)).select(masked_batch()).scores.isfinite().all()


def check_exits_that_leave_midway_are_refused() -> None:
    net = make_net()
    additive = AdditiveExit(net, "embed", features=8)
    shard(net, net.blocks)
    for exit in (TunedExit("embed"), additive):
        with pytest.raises(ValueError, match=r"leaves the model's forward in the middle.*exit=k"):
            Sifter(net, exit=exit)
    stages = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 3), nn.Conv2d(8, 16, 3))
    cnn = nn.Sequential(stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2))
    shard(cnn, stages)
    with pytest.raises(ValueError, match="leaves the model's forward"):
        Sifter(cnn, keep=0.5)
    with pytest.raises(ValueError, match=r"FullyShardedDataParallel.*fully_shard \(FSDP2\)"):
        Sifter(FullyShardedDataParallel(make_net(), device_id=torch.device("cpu")), exit=1)


def check_losses_that_are_not_explained_are_refused() -> None:
    class Smoothed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = make_net()

        def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            logits = self.net(x)
            found = {"logits": logits}
            if labels is not None:
                found["loss"] = nn.functional.cross_entropy(logits, labels, label_smoothing=0.3)
            return found

    model = Smoothed()
    shard(model, model.net.blocks)
    x, y = part(candidates(0))
    with pytest.raises(ValueError, match="ranks of a sharded model have to run it equally often"):
        Sifter(model, exit=1, score="entropy").select({"x": x, "labels": y})


if __name__ == "__main__":
    run(
        [
            check_sharded_training_is_that_of_ddp,
            check_a_memory_is_fed_by_a_sharded_model,
            check_scoring_gathers_only_what_it_runs,
            check_a_rank_without_labels_stays_in_step,
            check_heads_run_where_labels_are,
            check_exits_that_leave_midway_are_refused,
            check_losses_that_are_not_explained_are_refused,
        ]
    )
