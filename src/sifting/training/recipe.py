"""What all recipes share: common settings, one run from start to end, and the command line."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from sifting.parallel.detect import in_use
from sifting.sifter import Sifter
from sifting.training.arms import find_arm
from sifting.training.engine import Diverged, Engine
from sifting.training.problem import Pace, Problem, Task
from sifting.training.run_folder import RunError, RunFolder, read_run


class DataError(ValueError):
    """Data that cannot be trained on; the message names the row, file or split."""


@dataclass(frozen=True)
class Common:
    """Settings that every recipe has."""

    arm: str = "baseline"
    """Which samples are trained: an arm's name, one at another exit (sift@3), or module:attribute."""
    seed: int = 0
    """Of initialisation, order and choice."""
    updates: int | None = None
    """Optimizer steps; None for the recipe's own number."""
    batch: int = 32
    """Samples trained at once on each device; an arm that selects draws 1/keep times as many."""
    warmup: float = 0.0
    """Share of the updates before the first selection."""
    accumulate: int = 1
    """Batches whose gradients make one update."""
    clip: float | None = None
    """Largest norm of the gradient."""
    autocast: Literal["no", "bf16", "fp16"] = "no"
    """Precision of the forward pass."""
    device: str = "cpu"
    """Where to train, e.g. "cuda"; under torchrun each rank takes its own."""
    scope: Literal["rank", "global"] = "rank"
    """Among whose candidates to choose where there are several ranks."""
    audit_every: int = 50
    """Selections between audits of the choice."""
    evaluations: int = 20
    """Evaluations over the run; a checkpoint goes with each."""
    keep_checkpoints: int = 2
    """How many of the last checkpoints to keep."""

    def __post_init__(self) -> None:
        find_arm(self.arm)
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup={self.warmup} is not in [0, 1): it is a share of the updates")
        for name in ("batch", "evaluations", "accumulate", "keep_checkpoints", "updates"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name}={value}: give at least 1")


C = TypeVar("C", bound=Common)
D = TypeVar("D")


@dataclass(frozen=True)
class Recipe(Generic[C, D]):
    """An experiment that can be run at every size.

    Attributes:
        name: what follows `sift train`.
        about: what it does, for --help.
        presets: settings by name; they differ only in numbers.
        read: the data of some settings, read once for all arms and seeds.
        problem: the model and all that belongs to it, for one run.
        updates: how many updates the settings mean where they do not say.
    """

    name: str
    about: str
    presets: Mapping[str, C]
    read: Callable[[C], D]
    problem: Callable[[C, D], Problem]
    updates: Callable[[C, D], int]


def place() -> tuple[int, int]:
    """This process' rank and the number of ranks; (0, 1) outside `torchrun`."""
    return (dist.get_rank(), dist.get_world_size()) if in_use() else (0, 1)


def update_size(config: Common) -> int:
    """Samples that one update is made of, on all ranks together."""
    return config.batch * config.accumulate * place()[1]


def settings(recipe: str, config: Common, problem: Problem, sifter: Sifter) -> dict[str, Any]:
    """What `config.json` of a run holds: plain values, and what a report has to know."""
    own: dict[str, Any] = json.loads(json.dumps(asdict(config)))
    return {
        "recipe": recipe,
        **own,
        "metric": problem.metric,
        "lower_is_better": problem.lower_is_better,
        "selector": selector(sifter),
    }


def selector(sifter: Sifter) -> dict[str, Any] | None:
    """What a sifter selects by, in plain values; None where it keeps everything."""
    if sifter.schedule.keep == 1.0:
        return None
    found = sifter.settings()
    return {k: found[k] for k in ("exit", "score", "policy", "keep", "explore", "trim")}


def make_sifter(config: Common, problem: Problem, updates: int, log: Path | None) -> Sifter:
    """The sifter of the config's arm."""
    rank, world = place()
    return find_arm(config.arm).make(
        problem.model,
        early=problem.exit,
        samples=problem.samples,
        warmup_steps=round(config.warmup * updates) * config.accumulate,
        audit_every=config.audit_every,
        audit_log=log if rank == 0 or config.scope == "global" else None,
        scope=config.scope if world > 1 else "rank",
        seed=config.seed,
        **problem.sifter,
    )


def assemble(
    name: str,
    config: Common,
    problem: Problem,
    out: Path,
    *,
    updates: int,
    resume: bool = False,
    extra: Mapping[str, Any] | None = None,
    reference: Mapping[str, float] | None = None,
) -> Engine:
    """One run of a problem, its folder made or reopened, at its last checkpoint.

    Args:
        name: of the recipe, for the record.
        config: arm, seed and pace.
        problem: made for this run.
        out: the run folder.
        updates: optimizer steps, for which the learning rate is planned.
        resume: go on from the folder's last checkpoint.
        extra: more for `config.json`, e.g. the budget.
        reference: see `Engine`.
    """
    rank, world = place()
    if not resume:
        _check_new(out)
    if world > 1:
        where = next(problem.model.parameters()).device
        gpu = [where.index] if where.type == "cuda" else None
        wrapped = DistributedDataParallel(problem.model, device_ids=gpu)
        problem = replace(problem, model=wrapped)
    sifter = make_sifter(config, problem, updates, out / "audits.jsonl")
    keep = sifter.schedule.keep_at(0)
    plain = {**settings(name, config, problem, sifter), "updates": updates, **(extra or {})}
    loader = problem.batches(round(problem.batch / keep))  # may refuse: before a folder is made
    step = RunFolder(out).latest() if resume else None
    if rank > 0:
        folder = RunFolder(out)
    elif resume:
        done = step or 0
        folder = RunFolder.reopen(out, config=plain, step=done, batches=done * config.accumulate)
    else:
        folder = RunFolder.create(
            out,
            config=plain,
            checkpoint_bytes=problem.checkpoint_bytes(),
            keep=config.keep_checkpoints,
        )
    if world > 1:
        dist.barrier()
    optimizer = problem.optimizer
    task = Task(
        problem.model,
        optimizer,
        loader,
        problem.loss,
        problem.evaluate,
        None if problem.schedule is None else problem.schedule(optimizer, updates),
        problem.at_end,
    )
    every = max(1, updates // config.evaluations)
    pace = Pace(
        updates=updates,
        accumulate=config.accumulate,
        clip=config.clip,
        autocast=config.autocast,
        log_every=max(1, every // 5),
        evaluate_every=every,
        checkpoint_every=every,
        keep_checkpoints=config.keep_checkpoints,
    )
    engine = Engine(task, sifter, pace, folder, reference=reference)
    if step is not None:
        engine.resume(step)
    return engine


def _check_new(out: Path) -> None:
    """Raise unless a new run can be written; the rank that writes asks."""
    if place()[0] == 0:
        RunFolder.check(out)


def train(
    recipe: Recipe[C, D],
    config: C,
    out: Path,
    *,
    resume: bool = False,
    data: D | None = None,
    watch: Callable[[Mapping[str, Any]], None] | None = None,
) -> str:
    """Run one arm, or go on with it; returns the status its folder ends with."""
    if not resume:
        _check_new(out)  # before the data is read, which may take long
    elif read_run(out).status == "finished":
        return "finished"
    if data is None:
        data = recipe.read(config)
    updates = config.updates or recipe.updates(config, data)
    problem = recipe.problem(config, data)
    if place()[0] > 0:  # the weights are alike on all ranks; what dropout leaves out is not to be
        torch.manual_seed(config.seed + place()[0] * 2**32)
    budget = {"budget": {"kind": "updates", "amount": updates}}
    engine = assemble(
        recipe.name, config, problem, out, updates=updates, resume=resume, extra=budget
    )
    engine.watch = watch
    return engine.run()


@contextmanager
def joined(device: str) -> Iterator[str]:
    """Take part in the group that `torchrun` made, if any; gives this rank's device."""
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
    dist.init_process_group("cpu:gloo,cuda:nccl" if device.startswith("cuda") else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


def main(recipe: Recipe[C, D], argv: Sequence[str] | None = None) -> int:
    """`sift train RECIPE [preset] --out FOLDER …`."""
    from sifting.cli.parsing import parse
    from sifting.training.progress import progress_line

    label = f"sift train {recipe.name}"
    try:
        command = parse(recipe, list(argv or []))
        config: C = command.config
        with joined(config.device) as device:
            config = replace(config, device=device)
            with progress_line(config.arm, shown=place()[0] == 0) as watch:
                status = train(recipe, config, command.out, resume=command.resume, watch=watch)
            if place()[0] > 0:
                return 0
    except (RunError, Diverged, ValueError) as error:
        print(f"{label}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            f"{label}: stopped at once; --resume goes on from the last checkpoint", file=sys.stderr
        )
        return 130
    run = read_run(command.out)
    assert run.summary is not None
    print(f"{status} after {run.summary['updates']} updates: {run.summary['final']}; {command.out}")
    return 0
