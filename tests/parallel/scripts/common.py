"""Models and data that every rank makes alike, and a runner of checks."""

from __future__ import annotations

import datetime
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from typing import NoReturn

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from sifting import SiftingWarning

FEATURES, CLASSES = 6, 4


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.linear(x))


class Net(nn.Module):
    """Nothing in it mixes samples, so that it does not matter which rank trains which."""

    def __init__(self, depth: int = 4, width: int = 8) -> None:
        super().__init__()
        self.embed = nn.Linear(FEATURES, width)
        self.blocks = nn.ModuleList([Block(width) for _ in range(depth)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def make_net(dtype: torch.dtype = torch.float64) -> Net:
    torch.manual_seed(1)
    return Net().to(dtype)


def candidates(
    step: int, size: int = 16, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor]:
    """A batch of candidates of all ranks together."""
    generator = torch.Generator().manual_seed(100 + step)
    x = torch.randn(size, FEATURES, generator=generator, dtype=dtype)
    return x, torch.randint(0, CLASSES, (size,), generator=generator)


def part(batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """This rank's part of it: an equal, consecutive one."""
    rank, world = dist.get_rank(), dist.get_world_size()
    x, y = (member.chunk(world)[rank] for member in batch)
    return x, y


def train(
    model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], lr: float = 0.3
) -> list[float]:
    """A plain loop; gives its losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    losses = []
    for x, y in batches:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def full(tensor: Tensor) -> Tensor:
    """A parameter whole, also where it is sharded."""
    gathered = getattr(tensor, "full_tensor", None)
    return (gathered() if gathered is not None else tensor).detach()


def differ(a: nn.Module, b: nn.Module) -> float:
    """The largest difference between two models' parameters."""
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return max(float((full(p) - full(q)).abs().max()) for p, q in pairs)


def join_group(seconds: float = 60) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=seconds))


def run(checks: list[Callable[[], None]]) -> NoReturn:
    """Run them on every rank; the first that fails ends the job, with its name."""
    warnings.simplefilter("ignore", SiftingWarning)  # so few samples prove nothing
    join_group()
    for check in checks:
        begin = time.monotonic()
        try:
            check()
            dist.barrier()
        except BaseException:
            print(f"FAILED {check.__name__} on rank {dist.get_rank()}", file=sys.stderr)
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(1)
        if dist.get_rank() == 0:
            print(f"passed {check.__name__} {time.monotonic() - begin:.1f} s", flush=True)
    leave()


def leave() -> NoReturn:
    """End this rank once all have come here, without gloo's own end, which at times aborts."""
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)
