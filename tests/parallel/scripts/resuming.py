"""A run that saves itself, and continues from its last checkpoint with as many ranks as there are.

    resuming.py FOLDER … [--shard NUMBER] [--lively] [--die-at STEP] [--die-in-the-end]

Writes the final parameters to FOLDER/final.pt, one run after the other. The first NUMBER of them
are sharded, the others in DDP. `--lively` adds what need not agree between numbers of ranks:
dropout, BatchNorm, random picks. The last rank dies at STEP, unless torchrun has started it again, or
in the end.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from sifting import Sifter, TunedExit
from sifting.checkpoint import latest, load, save
from tests.parallel.scripts.common import CLASSES, FEATURES, Block, Net, full, join_group, leave

EPOCHS, BATCH, SAMPLES = 2, 8, 96  # samples trained in a step, on all ranks together
STEPS_LAST = 24
# 4 steps of warm-up; from step 8 on, candidates are of an epoch's second pass
CANDIDATES_LAST = 4 * 8 + 20 * 16
SAVED = (3, 6, 9)


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def make(shard: bool, lively: bool) -> tuple[nn.Module, torch.optim.Optimizer, Sifter]:
    torch.manual_seed(1)
    net = Net().double()
    if lively:
        for i, block in enumerate(net.blocks):
            net.blocks[i] = Dropped(block)
    model: nn.Module = net
    if world() > 1 and shard:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (world(),))
        for block in net.blocks:
            fully_shard(block, mesh=mesh)
        fully_shard(net, mesh=mesh)
    elif world() > 1:
        model = DDP(net)
    sifter = Sifter(
        model,
        exit=TunedExit(1, lr=0.05),
        score="loss",
        explore=0.25 if lively else 0.0,
        warmup_steps=4,
        audit_every=3,
        scope="global" if world() > 1 else "rank",
    )
    return model, torch.optim.AdamW(model.parameters(), lr=0.02), sifter


class Dropped(Block):
    def __init__(self, block: Block) -> None:
        super().__init__(block.linear.in_features)
        self.linear = block.linear
        self.dropout = nn.Dropout(0.2)
        # its averages are each rank's own, and scoring uses them
        self.norm = nn.BatchNorm1d(block.linear.in_features).double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.dropout(super().forward(x)))


def own_buffers(folder: Path, sifter: Sifter) -> Path:
    return folder / f"buffers-{sifter.step}-{rank()}.pt"


def go(
    folder: Path,
    *,
    shard: bool = False,
    lively: bool = False,
    die_at: int = -1,
    stop_at: int = -1,
    keep: int = 99,
) -> Sifter:
    """Train to the end, from the last checkpoint there is."""
    torch.manual_seed(rank())
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(
        torch.randn(SAMPLES, FEATURES, generator=generator).double(),
        torch.randint(0, CLASSES, (SAMPLES,), generator=generator),
    )
    sampler = DistributedSampler(data, num_replicas=world(), rank=rank(), seed=7)
    loader = DataLoader(data, batch_size=BATCH // world(), sampler=sampler)
    model, optimizer, sifter = make(shard, lively)
    start, path = 0, latest(folder)
    if path is not None:
        start = load(path, model=model, optimizer=optimizer, sifter=sifter)["epoch"]
        if (
            lively
        ):  # as this rank had them: scoring comes before DDP's next forward makes them alike
            saved = torch.load(own_buffers(folder, sifter), weights_only=True)
            assert all(torch.equal(saved[n], b) for n, b in model.named_buffers()), saved
        if rank() == 0:
            print(f"went on from {path.name}", flush=True)
    for epoch in range(start, EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in sifter(loader):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            if sifter.step in SAVED:
                where = {"model": model, "optimizer": optimizer, "sifter": sifter}
                save(folder, **where, extra={"epoch": epoch}, keep=keep)
                if lively:
                    torch.save(dict(model.named_buffers()), own_buffers(folder, sifter))
            if sifter.step == stop_at:
                return sifter
            restarted = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"
            if sifter.step == die_at and rank() == world() - 1 and not restarted:
                os._exit(13)
    final = [full(parameter) for parameter in model.parameters()]
    if rank() == 0:
        torch.save(final, folder / "final.pt")
    return sifter


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="+")
    parser.add_argument("--shard", type=int, default=0)
    parser.add_argument("--lively", action="store_true")
    parser.add_argument("--die-at", type=int, default=-1)
    parser.add_argument("--die-in-the-end", action="store_true")
    args = parser.parse_args()
    join_group(seconds=60)
    for place, folder in enumerate(args.folder):
        found = go(folder, shard=place < args.shard, lively=args.lively, die_at=args.die_at)
        total = found.stats(reduce=True)
        if rank() == 0:
            print(f"{total.steps} steps, {total.candidates_seen} candidates", flush=True)
    sys.stdout.flush()
    if args.die_in_the_end:
        dist.barrier()
        if rank() == world() - 1:
            os._exit(13)
        time.sleep(600)  # until it is ended
    leave()
