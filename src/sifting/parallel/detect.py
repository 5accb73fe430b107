"""How a model is spread over processes: what DDP, FSDP and DeepSpeed have made of it."""

from __future__ import annotations

import sys
from typing import Any

import torch.distributed as dist
from torch import nn


def in_use() -> bool:
    """Whether this process is one of a group.

    >>> in_use()
    False
    """
    return dist.is_available() and dist.is_initialized()


def first_rank() -> bool:
    """Whether this process is the one that speaks for its group, or alone.

    >>> first_rank()
    True
    """
    return not in_use() or dist.get_rank() == 0


def rank_of() -> tuple[int, int]:
    """Which of how many processes this is.

    >>> rank_of()
    (0, 1)
    """
    return (dist.get_rank(), dist.get_world_size()) if in_use() else (0, 1)


def data_parallel(model: nn.Module) -> nn.parallel.DistributedDataParallel | None:
    """The DDP wrapper in a model, also under `torch.compile`."""
    while isinstance(getattr(model, "_orig_mod", None), nn.Module):
        model = model._orig_mod  # type: ignore[assignment]
    return model if isinstance(model, nn.parallel.DistributedDataParallel) else None


def data_parallel_under_way() -> nn.Module | None:
    """The DDP wrapper whose forward is under way, where there is one.

    >>> data_parallel_under_way() is None
    True

    A sifter that was made before its model was wrapped finds the wrapper so.
    """
    found = getattr(nn.parallel.DistributedDataParallel, "_active_ddp_module", None)
    return found if isinstance(found, nn.Module) else None


def replicated(model: nn.Module) -> bool:
    """Whether every rank holds the whole model and they train it together: DDP, or DeepSpeed's ZeRO-1 and 2.

    >>> replicated(nn.Linear(2, 2))
    False
    """
    return data_parallel(model) is not None or _is_engine(model)


def _is_engine(model: nn.Module) -> bool:
    deepspeed: Any = sys.modules.get("deepspeed")  # not there, not used
    kind = getattr(deepspeed, "DeepSpeedEngine", None)
    return kind is not None and isinstance(model, kind)


def reshard(model: nn.Module) -> None:
    """Spread the parameters of a sharded model over its ranks again, where a forward has gathered them."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    for module in () if fsdp is None else model.modules():
        if isinstance(module, fsdp.FSDPModule):
            module.reshard()


def sharded(model: nn.Module) -> bool:
    """Whether a model's parameters are spread over ranks by `fully_shard`.

    >>> sharded(nn.Linear(2, 2))
    False
    """
    if any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        raise ValueError(
            "the model's parameters are divided among processes by DeepSpeed's ZeRO-3, which gathers them by "
            "hooks of its own that know the whole forward alone, so that no part of it can be run to score: "
            "choose zero_stage 1 or 2, or shard with FSDP2 (fsdp_version: 2)"
        )
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")  # not there, not used
    if fsdp is None or not in_use():
        return False
    if any(isinstance(module, fsdp.FullyShardedDataParallel) for module in model.modules()):
        raise ValueError(
            "the model is wrapped in FullyShardedDataParallel, whose flat parameters cannot be gathered a "
            "block at a time by scoring: shard it with torch.distributed.fsdp.fully_shard (FSDP2)"
        )
    return any(isinstance(module, fsdp.FSDPModule) for module in model.modules())


def gathers_inside(module: nn.Module) -> bool:
    """Whether a part of a module is sharded on its own, so that each call of it is a collective."""
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    return fsdp is not None and any(
        isinstance(part, fsdp.FSDPModule) for part in module.modules() if part is not module
    )


def unwrap(model: nn.Module) -> nn.Module:
    """The user's own module inside DDP, DataParallel, DeepSpeed's engine and `torch.compile`.

    Scoring goes past them: DDP's forward prepares a backward that never comes, and a compiled
    graph is for whole batches of the whole model.
    """
    wrappers = (nn.parallel.DistributedDataParallel, nn.DataParallel)
    while True:
        if isinstance(model, wrappers) or _is_engine(model):
            model = model.module  # type: ignore[assignment]
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model
