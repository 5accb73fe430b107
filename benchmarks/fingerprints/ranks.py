"""Two gloo processes under torchrun: DDP and fully_shard, within ranks and over them, and trainers."""

from __future__ import annotations

import datetime
import fnmatch
import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

from fingerprints.digest import Result, short

SCRIPT = Path(__file__).resolve().parents[1] / "fingerprint.py"
WORLD = 2
LIMIT = 400  # seconds


def torchrun(*arguments: str, cwd: Path | None = None) -> None:
    """Run the fingerprint script on two ranks; its errors end this process."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    done = subprocess.run(
        [*command, f"--nproc-per-node={WORLD}", str(SCRIPT), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
        cwd=cwd,
    )
    if done.returncode:
        raise SystemExit(f"torchrun {' '.join(arguments)} failed:\n{done.stderr[-4000:]}")


def results(wanted: Callable[[str], bool], only: str | None) -> Iterator[tuple[str, Result]]:
    """All settings of this file that are wanted, from one start of two processes."""
    if not any(wanted(name) for name in names()):
        return
    with tempfile.TemporaryDirectory() as folder:
        torchrun("--rank", folder, only or "*")
        found: dict[str, Result] = json.loads((Path(folder) / "found.json").read_text())
    yield from found.items()


LOOPS: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    # name: wrapper, scope, model, settings of the sifter
    "ddp rank exit=1 loss": ("ddp", "rank", "normed", {"exit": 1, "score": "loss"}),
    "ddp rank defaults": ("ddp", "rank", "normed", {}),
    "ddp rank percentile explore": (
        "ddp",
        "rank",
        "normed",
        {"exit": 2, "score": "entropy", "policy": "percentile", "explore": 0.25},
    ),
    "ddp rank MemoryExit": ("ddp", "rank", "normed", {"exit": "memory", "score": "loss", "ids": 2}),
    "ddp rank dropout warm-up": (
        "ddp",
        "rank",
        "bert-classifier",
        {"exit": 1, "score": "loss", "warmup_steps": 3},
    ),
    "ddp global exit=1 loss": ("ddp", "global", "normed", {"exit": 1, "score": "loss"}),
    "ddp global defaults": ("ddp", "global", "normed", {}),
    "ddp global percentile explore trim": (
        "ddp",
        "global",
        "normed",
        {"exit": 2, "score": "margin", "policy": "percentile", "explore": 0.25, "trim": 0.1},
    ),
    "ddp global proportional": (
        "ddp",
        "global",
        "normed",
        {"exit": 1, "score": "loss", "policy": "proportional", "keep": 0.25, "explore": 0.5},
    ),
    "ddp global random every": ("ddp", "global", "normed", {"policy": "random", "every": 2}),
    "ddp global bert-mlm exit=1 loss": (
        "ddp",
        "global",
        "bert-mlm",
        {"exit": 1, "score": "loss", "score_batch_size": 3},
    ),
    "shard rank exit=1 loss": ("shard", "rank", "normed", {"exit": 1, "score": "loss"}),
    "shard rank TunedExit(1) loss": ("shard", "rank", "normed", {"exit": "one", "score": "loss"}),
    "shard global exit=2 entropy warm-up": (
        "shard",
        "global",
        "normed",
        {"exit": 2, "score": "entropy", "explore": 0.5, "warmup_steps": 3},
    ),
    "shard global bert-mlm tuned": ("shard", "global", "bert-mlm", {}),
}
SAVED = {
    "ddp rank saved and resumed": ("ddp", "rank", "normed", {}),
    "ddp global saved and resumed": ("ddp", "global", "normed", {"exit": "one", "score": "loss"}),
    "shard global saved and resumed": ("shard", "global", "normed", {"exit": "one"}),
}
TRAINERS = ("trainer warm-up explore", "lightning explore, resumed")


def names() -> list[str]:
    return [f"ranks/{name}" for name in (*LOOPS, *SAVED, *TRAINERS)]


def main(folder: str, only: str) -> NoReturn:
    """Under torchrun: run what matches, and join the hashes of all ranks."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=120))
    warnings.simplefilter("ignore")
    found: dict[str, Result] = {}
    for name, setting in _settings(Path(folder)):
        if not fnmatch.fnmatch(name, only):
            continue
        everyones: list[Any] = [None] * WORLD
        dist.all_gather_object(everyones, setting())
        parts = everyones[0]["parts"]
        found[name] = {
            "parts": {
                part: short(repr([own["parts"][part] for own in everyones]).encode())
                for part in parts
            },
            "numbers": everyones[0]["numbers"],
        }
    dist.barrier()
    if dist.get_rank() == 0:
        (Path(folder) / "found.json").write_text(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # without gloo's own end, which at times aborts


def _settings(folder: Path) -> Iterator[tuple[str, Callable[[], Result]]]:
    from fingerprints.trainers import lightning, trainer

    for name, given in LOOPS.items():
        yield f"ranks/{name}", lambda given=given: _loop(*given)
    for place, (name, given) in enumerate(SAVED.items()):
        yield f"ranks/{name}", lambda p=place, g=given: _saved(folder / str(p), *g)
    yield (
        f"ranks/{TRAINERS[0]}",
        lambda: trainer(
            {"exit": 1, "score": "loss", "warmup_steps": 3, "explore": 0.25},
            ddp_backend="gloo",
            ddp_find_unused_parameters=False,
        ),
    )
    yield (
        f"ranks/{TRAINERS[1]}",
        lambda: lightning(
            {"exit": 1, "score": "loss", "explore": 0.25},
            kind="normed",
            resume=2,
            folder=folder / "lightning",
            strategy="ddp",
            devices=WORLD,
        ),
    )


def _wrapped(wrapper: str, kind: str) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    from fingerprints.models import make_model

    model = make_model(kind)
    if wrapper == "ddp":
        return DistributedDataParallel(model)
    mesh = init_device_mesh("cpu", (WORLD,))
    blocks: Any = model.blocks if kind == "normed" else model.bert.encoder.layer
    for block in blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def _begin(wrapper: str, scope: str, kind: str, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    import torch.distributed as dist

    from fingerprints.loops import make_sifter, memory, optimizer_of, tuned
    from fingerprints.models import seed_all

    model = _wrapped(wrapper, kind)
    made = {"memory": memory(), "one": tuned(1, lr=0.05)}
    settings = {**given, "scope": scope}
    if given.get("exit") in made:
        settings["exit"] = made[given["exit"]]
    sifter, optimizer = make_sifter(model, settings), optimizer_of(model)
    seed_all(2 + dist.get_rank())
    return model, sifter, optimizer


def _loop(wrapper: str, scope: str, kind: str, given: dict[str, Any]) -> Result:
    import torch.distributed as dist

    from fingerprints.digest import of_leaves
    from fingerprints.loops import step
    from fingerprints.models import batches
    from fingerprints.record import Record

    model, sifter, optimizer = _begin(wrapper, scope, kind, given)
    data = batches(kind, ids="ids" in given, rank=dist.get_rank(), world=WORLD)
    record = Record()
    for _ in range(2):
        for batch in sifter(data):
            step(kind, model, optimizer, sifter, batch, record)
    found = record.result(model, sifter, scores=[sifter.score(data[1])])
    found["parts"]["reduced stats"] = of_leaves(dict(sifter.stats(reduce=True)))
    return found


def _saved(folder: Path, wrapper: str, scope: str, kind: str, given: dict[str, Any]) -> Result:
    """Saved by all ranks in the middle of the second epoch, and resumed."""
    import torch.distributed as dist
    from torch.utils.data import DataLoader, DistributedSampler

    from fingerprints.digest import of_model
    from fingerprints.loops import step
    from fingerprints.models import SIZE, Samples
    from fingerprints.names import public
    from fingerprints.record import Record

    data = Samples(kind)
    given = {**given, "warmup_steps": 2, "ids": 2}
    ends = []
    for stop in (None, 10):
        record = Record()
        parts, start, path = _begin(wrapper, scope, kind, given), 0, None
        while True:
            model, sifter, optimizer = parts
            if path is not None:
                where = {"model": model, "optimizer": optimizer, "sifter": sifter}
                start, path = public("load")(path, **where)["epoch"], None
            for epoch in range(start, 2):
                sampler: Any = DistributedSampler(data, WORLD, dist.get_rank(), seed=7)
                sampler.set_epoch(epoch)
                for batch in sifter(DataLoader(data, SIZE // WORLD, sampler=sampler)):
                    step(kind, model, optimizer, sifter, batch, record)
                    if len(record.losses) == stop:
                        where = {"model": model, "optimizer": optimizer, "sifter": sifter}
                        path = public("save")(_shared(folder), **where, extra={"epoch": epoch})
                        break
                if path is not None:
                    break
            if path is None:
                break
            parts, stop = _begin(wrapper, scope, kind, given), None
        ends.append(of_model(model))
    found = record.result(model, sifter)
    found["numbers"]["as if uncut"] = int(ends[0] == ends[1])
    return found


def _shared(folder: Path) -> Path:
    """A folder that all ranks see."""
    folder.mkdir(parents=True, exist_ok=True)
    return folder
