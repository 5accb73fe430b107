"""Two ranks with the exit of the page: averaged, the same on both, and resumed.

torchrun --nproc-per-node 2 probe_on_ranks.py FOLDER_OF_THE_PAGES_FILES
"""

from __future__ import annotations

import datetime
import importlib
import io
import os
import sys
import warnings
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter, SiftingWarning

FEATURES, CLASSES, BATCH, STEPS = 6, 4, 16, 8


def make_model() -> nn.Module:
    torch.manual_seed(1)
    layers = [nn.Linear(FEATURES, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, CLASSES)]
    return nn.Sequential(*layers)


def make_data(rank: int) -> TensorDataset:
    """Other samples on every rank."""
    generator = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(BATCH * STEPS, FEATURES, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long())


class Run:
    """A model in DDP with its sifter, trained step by step."""

    def __init__(self, rank: int) -> None:
        self.model = make_model()
        self.ddp = DistributedDataParallel(self.model)
        self.exit = importlib.import_module("probe").Probe("1")
        self.sifter = Sifter(self.ddp, exit=self.exit, seed=rank, audit_every=0)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loader = DataLoader(make_data(rank), batch_size=BATCH, shuffle=True)
        self.chosen: list[list[float]] = []

    def train(self, *, save_after: int | None = None) -> bytes | None:
        """To the end of the epoch; gives the state after some steps, where it is wanted."""
        saved = None
        for x, y in self.sifter(self.loader):
            F.cross_entropy(self.ddp(x), y).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.chosen.append(x[:, 0].tolist())
            if len(self.chosen) == save_after:
                saved = self.saved()
        return saved

    def saved(self) -> bytes:
        state = {
            "model": self.model.state_dict(),
            "sifter": self.sifter.state_dict(),
            "random": torch.get_rng_state(),
        }
        file = io.BytesIO()
        torch.save(state, file)
        return file.getvalue()

    def load(self, saved: bytes) -> None:
        state: dict[str, Any] = torch.load(io.BytesIO(saved), weights_only=True)
        self.model.load_state_dict(state["model"])
        self.sifter.load_state_dict(state["sifter"])
        torch.set_rng_state(state["random"])

    @property
    def weight(self) -> Tensor:
        weight: Tensor = self.exit.weight_CF
        return weight


def everyones(value: Tensor) -> list[Tensor]:
    found = [torch.empty_like(value) for _ in range(dist.get_world_size())]
    dist.all_gather(found, value.contiguous())
    return found


def expected_after_one(x: Tensor, y: Tensor) -> Tensor:
    """What a probe of zeros is after one update on these samples, without any of our code."""
    features = torch.tanh(make_model()[0](x)).detach()
    errors = torch.full((len(y), CLASSES), 1 / CLASSES) - F.one_hot(y, CLASSES)
    return -0.5 * errors.T @ features / len(y)


def main() -> None:
    sys.path.insert(0, sys.argv[1])
    warnings.simplefilter("ignore", SiftingWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
    rank = dist.get_rank()

    averaged = Run(rank)
    x, y = make_data(rank)[: 2 * BATCH]
    averaged.sifter.select((x, y))
    both = torch.cat(everyones(x)), torch.cat(everyones(y))
    torch.testing.assert_close(averaged.weight, expected_after_one(*both))
    own = expected_after_one(x, y)
    assert not torch.allclose(averaged.weight, own, atol=1e-3), "it is this rank's alone"

    whole, resumed = Run(rank), Run(rank)
    torch.manual_seed(rank)
    saved = whole.train(save_after=3)
    assert saved is not None
    assert len(whole.chosen) == STEPS
    resumed.load(saved)
    resumed.train()
    assert resumed.chosen == whole.chosen[3:], "other choices than without the interruption"
    assert torch.equal(resumed.weight, whole.weight)
    ours, theirs = everyones(whole.weight)
    assert torch.equal(ours, theirs), "the ranks' probes have come apart"

    if rank == 0:
        print("averaged, alike, resumed", flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # without gloo's own end, which at times aborts


if __name__ == "__main__":
    main()
