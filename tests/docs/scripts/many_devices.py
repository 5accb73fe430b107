"""The snippets of docs/distributed.md on two ranks, as they stand there.

torchrun --nproc-per-node 2 many_devices.py FOLDER
"""

from __future__ import annotations

import functools
import os
import sys
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from sifting import Sifter
from sifting.checkpoint import latest
from tests.helpers.pages import snippet
from tests.helpers.trainer_models import Texts, classifier
from tests.parallel.scripts.common import candidates, make_net, part, run

PAGE, EPOCHS = "distributed.md", 2


def names(**more: Any) -> tuple[dict[str, Any], list[int]]:
    """What the page takes as given, and a list that grows with each update."""
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    updates: list[int] = []

    def stepped(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if optimizer.param_groups[0]["lr"]:  # torch makes one without before it saves
            updates.append(1)

    optimizer.register_step_post_hook(stepped)
    data = [{k: v for k, v in sample.items() if k != "unused"} for sample in Texts(128)]  # type: ignore[attr-defined]
    found = {"model": model, "optimizer": optimizer, "data": data, "epochs": EPOCHS}
    found |= {"Sifter": Sifter, "DDP": DDP, "DataLoader": DataLoader}
    found |= {"DistributedSampler": DistributedSampler, **more}
    return found, updates


def check_the_line_changes_no_number_of_updates() -> None:
    begun = SimpleNamespace(init_process_group=lambda: None)  # the group is there already
    for line in (True, False):
        given, updates = names(dist=begun)
        exec(snippet(PAGE, "# Many devices", line=line), given)
        assert len(updates) == EPOCHS * 128 // 32 // 2
        if line:
            stats = given["sifter"].stats()
            assert (stats.samples_trained, stats.candidates_seen) == (128, 256)


class Layered(nn.Module):
    """With its blocks where the page has them."""

    def __init__(self) -> None:
        super().__init__()
        net = make_net()
        self.embed, self.layers, self.head = net.embed, net.blocks, net.head

    def forward(self, x: torch.Tensor) -> Any:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def check_a_sharded_model_is_sifted() -> None:
    shard = functools.partial(fully_shard, mesh=init_device_mesh("cpu", (2,)))
    given: dict[str, Any] = {"model": Layered(), "fully_shard": shard, "Sifter": Sifter}
    exec(snippet(PAGE, "## FSDP2"), given)
    scores = given["sifter"].score(part(candidates(0)))
    whole = Sifter(Layered(), exit=1, score="entropy").score(part(candidates(0)))
    torch.testing.assert_close(scores, whole)


def check_a_run_goes_on_from_its_checkpoints() -> None:
    code = snippet(PAGE, "## Checkpoints")
    assert code.count("% 1000 ") == 1
    for wanted in (EPOCHS * 2, 1):  # from the start; then from the last checkpoint, after step 3
        given, updates = names()
        model = DDP(given["model"])
        sampler = DistributedSampler(given["data"], seed=0)
        given |= {
            "model": model,
            "sampler": sampler,
            "loader": DataLoader(given["data"], 32, sampler=sampler),
            "sifter": Sifter(model, exit=1, score="loss", keep=0.5),
        }
        exec(code.replace("% 1000 ", "% 3 "), given)
        assert len(updates) == wanted, updates
        assert given["sifter"].step == EPOCHS * 2
        dist.barrier()
    found = latest("checkpoints")
    assert found is not None
    assert found.name == "step-000000003"


if __name__ == "__main__":
    os.chdir(sys.argv[1])
    run(
        [
            check_the_line_changes_no_number_of_updates,
            check_a_sharded_model_is_sifted,
            check_a_run_goes_on_from_its_checkpoints,
        ]
    )
