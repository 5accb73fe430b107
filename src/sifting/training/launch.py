"""Where a run takes place: its device, and its part in a group of processes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from sifting.parallel.detect import in_use
from sifting.training.run_folder import RunError

T = TypeVar("T")


def rank_and_world() -> tuple[int, int]:
    """This process' rank and the number of ranks.

    >>> rank_and_world()  # outside `torchrun`
    (0, 1)
    """
    return (dist.get_rank(), dist.get_world_size()) if in_use() else (0, 1)


def from_first(make: Callable[[], T]) -> T:
    """What rank 0 finds, on all ranks; where it is refused there, it is refused on all.

    >>> from_first(lambda: 3)
    3
    """
    rank, world = rank_and_world()
    if world == 1:
        return make()
    told: list[Any] = [None]
    if rank == 0:
        try:
            told = [(make(), None)]
        except (RunError, ValueError) as error:
            told = [(None, str(error))]
    dist.broadcast_object_list(told, src=0)
    value, refused = told[0]
    if refused is not None:
        raise RunError(refused)
    found: T = value
    return found


def _met_at() -> dict[str, Any]:
    """Where the ranks meet, where that is not for torch to say: after a restart, in a place of its own.

    `torchrun` keeps one store for all its restarts. There a rank that is started again finds the address of
    another as it was before, and waits for it in vain. On one machine its count of restarts tells them
    apart; several machines count for themselves.
    """
    one_machine = os.environ.get("LOCAL_WORLD_SIZE") == os.environ["WORLD_SIZE"]
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT")
    if not one_machine or restarts is None:
        return {}
    # not every build of torch has them
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    store, rank, world = next(rendezvous("env://"))
    return {
        "store": PrefixStore(f"start-{restarts}", store),
        "rank": rank,
        "world_size": world,
    }


@contextmanager
def process_group(device: str) -> Iterator[str]:
    """Take part in the group that `torchrun` made, if any; gives this rank's device.

    Args:
        device: as the user wrote it; "cuda" is this rank's own GPU where there are several ranks.
    """
    several = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not in_use()
    if several and device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:  # before the data is read, which may take long
        torch.empty(1, device=device)
        if device.startswith("cuda:"):
            torch.cuda.set_device(device)  # whose clock is waited for and random stream saved
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={device!r} cannot be used here: {error}") from error
    if not several:
        yield device
        return
    backend = "cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo"
    dist.init_process_group(backend, **_met_at())
    try:
        yield device
    finally:
        dist.destroy_process_group()
