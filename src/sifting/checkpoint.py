"""Checkpoints of a distributed run that continue with any number of ranks.

Model and optimizer are saved by `torch.distributed.checkpoint`, which lays them out again for the
ranks that load them. Of the sifter, what ranks share (weights of the exit, counts of steps, the
random stream) is saved once, what each has for itself (place in its loader, metrics, global
random streams) for each of them.
"""

from __future__ import annotations

import copy
import io
import re
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

from sifting import checksums, files
from sifting.cursor import Cursor
from sifting.log import say
from sifting.measure.meter import Meter
from sifting.parallel.detect import in_use, unwrap
from sifting.parallel.ranks import Ranks
from sifting.rng import load_random_state, save_random_state

if TYPE_CHECKING:
    from sifting.sifter import Sifter

COMPLETE = "checksums.json"  # of all files, written last


class Portable:
    """A sifter's state as `torch.distributed.checkpoint` can save it, for any number of ranks.

    state = {"model": …, "optimizer": …, "sifter": Portable(sifter)}
    dcp.save(state, checkpoint_id="step-1000")      # and dcp.load, on all ranks

    Both gather or read on all ranks, so all ranks must call them, as they must for dcp itself.

    Args:
        sifter: the one to save or to restore.
        extra: plain numbers, strings and tensors to save beside it, alike on all ranks; what
            was saved is in `extra` after loading.
    """

    def __init__(self, sifter: Sifter, extra: Mapping[str, Any] | None = None) -> None:
        self.sifter = sifter
        self.extra = dict(extra or {})

    def state_dict(self) -> dict[str, Any]:
        blob = io.BytesIO()
        torch.save({"parts": rank_states(self.sifter, self._ranks), "extra": self.extra}, blob)
        # one object: what is in it differs from state to state, and dcp.load asks beforehand
        return {"blob": blob.getvalue()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        saved = torch.load(io.BytesIO(state_dict["blob"]), map_location="cpu", weights_only=True)
        self.extra = saved["extra"]
        load_rank_states(self.sifter, saved["parts"], self._ranks)

    @property
    def _ranks(self) -> Ranks | None:
        return self.sifter.chooser.scorer.ranks or (
            Ranks(lambda: self.sifter.device) if in_use() else None
        )


def rank_states(sifter: Sifter, ranks: Ranks | None) -> list[dict[str, Any]]:
    """What each rank has for itself beside the model's weights; all ranks must ask.

    Args:
        sifter: of this rank.
        ranks: those that train together; None for a process of its own.
    """
    own = {"sifter": sifter.state_dict(), "streams": save_random_state()}
    if ranks is None:
        return [own]
    # BatchNorm's are each rank's own until DDP's next forward
    buffers = unwrap(sifter.model).named_buffers()
    own["buffers"] = {name: buffer.cpu() for name, buffer in buffers}
    return ranks.gather(own)


def load_rank_states(
    sifter: Sifter, parts: Sequence[Mapping[str, Any]], ranks: Ranks | None
) -> None:
    """Put back what `rank_states` gave, on as many ranks or another number.

    Random streams and buffers are put back on as many ranks alone: other ranks have none of their own.
    """
    rank, world = (0, 1) if ranks is None else (ranks.rank, ranks.world)
    sifter.load_state_dict(state_of([part["sifter"] for part in parts], rank, world))
    if len(parts) != world:
        return
    load_random_state(parts[rank]["streams"])
    own = parts[rank].get("buffers", {})
    for name, buffer in unwrap(sifter.model).named_buffers():
        if name in own:
            buffer.copy_(own[name])


def state_of(parts: Sequence[Mapping[str, Any]], rank: int, world: int) -> dict[str, Any]:
    """The state that one of `world` ranks continues with, from those of the ranks that saved.

    With as many ranks each gets its own. Otherwise samples seen and trained are divided so that
    their sums stay; the place in the loader stays too, in batches, which holds if all ranks
    together draw as many candidates a step as before (the loader checks it). A candidate batch
    that was half-trained in warm-up is trained again from its start.

    Args:
        parts: each saving rank's `Sifter.state_dict()`.
        rank: of the rank that resumes.
        world: number of ranks that resume.
    """
    if len(parts) == world:
        return dict(parts[rank])
    state = copy.deepcopy(dict(parts[rank % len(parts)]))
    first = parts[0]
    state["cursor"] = Cursor.divided([part["cursor"] for part in parts], rank, world)
    for name in ("generator", "autocast", "exit"):
        state[name] = copy.deepcopy(first[name])
    state["rank"] = None
    state["meter"] = Meter.divided([part["meter"] for part in parts], rank, world)
    state["ahead"] = None  # of candidates that other ranks draw otherwise: they are scored again
    looked = (state.get("pilot") or {}).get("held_out") or {}
    if any(hasattr(value, "device_mesh") for value in (looked.get("average") or {}).values()):
        looked["average"] = None  # spread over other ranks: averaging starts over
    return state


def save(
    folder: str | Path,
    *,
    model: nn.Module,
    optimizer: Optimizer,
    sifter: Sifter,
    extra: Mapping[str, Any] | None = None,
    keep: int = 2,
) -> Path:
    """Save a run on all its ranks, as `folder/step-…`; a checkpoint is whole or does not count.

    Args:
        folder: on a disk that all ranks see.
        model: as it is trained: plain, in DDP or sharded.
        optimizer: of its parameters.
        sifter: of the model.
        extra: plain values to save beside them, alike on all ranks: the epoch, a scheduler's
            state_dict.
        keep: how many checkpoints to keep; older ones are deleted once this one is whole.
    """
    if keep < 1:
        raise ValueError(f"keep={keep}: a run needs at least its last checkpoint")
    path = Path(folder) / f"step-{sifter.step:09d}"
    part = _part_of(path)
    first = not in_use() or dist.get_rank() == 0
    if first:
        _tidy(Path(folder))
    if in_use():
        dist.barrier()
    parameters, moments = get_state_dict(model, optimizer)
    state = {"model": parameters, "optimizer": moments, "sifter": Portable(sifter, extra)}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)  # one process
        state_dict_saver.save(state, checkpoint_id=part)
    if first:
        _seal(part)  # from here on it counts, whatever its name
        if path.exists():
            _drop(path)  # of this step too: of a run that was cut off here, or of an earlier one
        files.put_in_place(part, path)
        for old in _complete(folder)[:-keep]:
            _drop(old)
    if in_use():
        dist.barrier()  # whole when any rank goes on
    return path


def load(
    path: str | Path, *, model: nn.Module, optimizer: Optimizer, sifter: Sifter
) -> dict[str, Any]:
    """Restore a run, on all its ranks, from what `save` made on as many or another number.

    The next iteration over `sifter(loader)` continues after the last batch that was handed out.

    Args:
        path: the checkpoint, e.g. what `latest` found.
        model: gets its weights back; so do `optimizer` and `sifter`.
        optimizer: of the model.
        sifter: made with the settings that it was saved with.

    Returns:
        what was saved as `extra`.

    Raises:
        ValueError: where a file is not as it was saved; nothing is loaded then.
    """
    _verify(Path(path), share=True)
    parameters, moments = get_state_dict(model, optimizer)
    saved = Portable(sifter)
    state: dict[str, Any] = {"model": parameters, "optimizer": moments, "sifter": saved}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is", UserWarning)
        state_dict_loader.load(state, checkpoint_id=path)
    set_state_dict(
        model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
    )
    return saved.extra


def latest(folder: str | Path) -> Path | None:
    """The newest checkpoint in a folder that is whole and as it was saved; None where there is none yet.

    Newer ones that are damaged are passed over, and named in the log. All of a checkpoint is read for it,
    on every rank that asks.
    """
    for path in reversed(_complete(folder)):
        try:
            _verify(path)
            return path
        except checksums.Damaged as error:
            say(f"{error}: {path} is passed over")
    return None


def _part_of(path: Path) -> Path:
    """Where a checkpoint is written before it takes its name."""
    return path.with_name(f".{path.name}.part")


def _complete(folder: str | Path) -> list[Path]:
    """Whole checkpoints, oldest first; one that was about to take the place of another counts in its place."""
    found = {path.name: path for path in Path(folder).glob("step-*")}
    found |= {
        path.name[1:-5]: path
        for path in Path(folder).glob(".step-*.part")
        if (path / COMPLETE).exists()
    }
    return [
        path
        for name, path in sorted(found.items())
        if re.fullmatch(r"step-\d+", name) and (path / COMPLETE).exists()
    ]


def _tidy(folder: Path) -> None:
    """Give what a killed run had written whole its name, and drop what it had not."""
    for part in folder.glob(".step-*.part"):
        path = part.with_name(part.name[1:-5])
        if not (part / COMPLETE).exists():
            _drop(part)
            continue
        if path.exists():
            _drop(path)
        files.put_in_place(part, path)


def _drop(path: Path) -> None:
    """Delete a checkpoint; what a link leads to is somebody else's."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link: checkpoints are not deleted through one")
    shutil.rmtree(path)


def _seal(path: Path) -> None:
    names = sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())
    found = {name: checksums.digest_of_file(path / name) for name in names}
    checksums.write_json(path / COMPLETE, {"files": found})


def _verify(path: Path, *, share: bool = False) -> None:
    """Raise `Damaged` unless all files of a checkpoint are as they were saved.

    Args:
        path: the checkpoint.
        share: whether the ranks share the work; then all of them must ask, and all of them raise.
    """
    together = share and in_use()
    rank, world = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
    wrong = None
    try:
        if not (path / COMPLETE).exists():
            raise checksums.Damaged(f"{path} is not a whole checkpoint: it has no {COMPLETE}")
        named = checksums.read_json(path / COMPLETE).get("files")
        if not isinstance(named, dict):
            raise checksums.Damaged(f"{path / COMPLETE} is damaged: it names no files")
        for number, (name, expected) in enumerate(sorted(named.items())):
            if number % world == rank:
                checksums.check_file(path / name, expected)
    except (OSError, checksums.Damaged) as error:
        wrong = str(error)
    if together:
        everyones: list[Any] = [None] * world
        dist.all_gather_object(everyones, wrong)
        wrong = next((theirs for theirs in everyones if theirs is not None), None)
    if wrong is not None:
        raise checksums.Damaged(wrong)
