"""The assembly of a run: a problem, an arm and a config become an engine with a folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler

from sifting.autopilot.trial import Trial
from sifting.exits.held_out import HeldOutReference
from sifting.log import say
from sifting.sifter import Sifter
from sifting.training.arms import find_arm
from sifting.training.checkpoints import Checkpoints, Found
from sifting.training.config import OPERATIONAL, RunConfig, plain_settings
from sifting.training.engine import Engine
from sifting.training.launch import from_first, rank_and_world
from sifting.training.problem import Pace, Problem, Task
from sifting.training.run_folder import resumable
from sifting.training.run_writer import RunFolder


def run_settings(name: str, config: RunConfig, problem: Problem, sifter: Sifter) -> dict[str, Any]:
    """What `config.json` of a run holds: plain values, and what a report has to know.

    Args:
        name: of the recipe, or of what else is trained.
    """
    return {
        "recipe": name,
        **plain_settings(config),
        "metric": problem.metric,
        "lower_is_better": problem.lower_is_better,
        "selector": selector_settings(sifter),
    }


def selector_settings(sifter: Sifter) -> dict[str, Any] | None:
    """What a sifter selects by, in plain values; None where it keeps everything."""
    if sifter.schedule.keep == 1.0:
        return None
    found = sifter.settings()
    return {k: found[k] for k in ("exit", "score", "policy", "keep", "explore", "trim")}


def make_sifter(
    config: RunConfig,
    problem: Problem,
    updates: int,
    log: Path | None,
    *,
    done: int = 0,
    schedule: LRScheduler | None = None,
) -> Sifter:
    """The sifter of the config's arm.

    Args:
        config, problem, updates: of the run.
        log: where audits are written.
        done: updates that were made without it.
        schedule: of the learning rate, by which an autopilot may end the run sooner.
    """
    rank, world = rank_and_world()
    arm = find_arm(config.arm)
    warm, last = (
        round(share * updates) * config.accumulate for share in (config.warmup, arm.until)
    )
    more: dict[str, Any] = {"stop_step": max(1, warm, last)} if arm.until < 1 else {}
    if arm.keep == "auto":
        held_out = None if problem.held_out is None else problem.held_out()
        more["trial"] = Trial(
            held_out=held_out,
            updates=(updates - done) * config.accumulate,
            loss=problem.loss,
            optimizer=problem.optimizer,
            accumulate=config.accumulate,
            clip=config.clip,
            schedule=schedule if arm.sooner else None,
        )
    if arm.held_out:
        if problem.held_out is None:
            raise ValueError(
                f"arm {config.arm!r} has a reference that learns from held-out samples, and this problem has "
                "none: give the Problem held_out="
            )
        more["reference"] = HeldOutReference(list(problem.held_out()))
    return arm.make(
        problem.model,
        early=problem.exit,
        samples=problem.samples,
        warmup_steps=warm,
        # an autopilot has its own ways to judge; audits are for the record
        audit_every=config.audit_every * (4 if arm.keep == "auto" else 1),
        audit_log=log if rank == 0 or config.scope == "global" else None,
        scope=config.scope if world > 1 else "rank",
        seed=config.seed,
        **more,
        **{
            "draws": "batch" if problem.sized and arm.keep != "auto" else "samples",
            **problem.sifter,
        },
    )


def loss_of(
    config: RunConfig, problem: Problem, sifter: Sifter
) -> Callable[[nn.Module, Any], Tensor]:
    """The loss that is trained: the problem's own, or one that has the sifter's weights in it."""
    if not find_arm(config.arm).weighted:
        return problem.loss
    losses = problem.losses
    if losses is None:
        raise ValueError(
            f"arm {config.arm!r} weights the losses of samples, and this problem has none of single samples: "
            "give the Problem losses="
        )

    def weighted(model: nn.Module, batch: Any) -> Tensor:
        return (sifter.weights * losses(model, batch)).mean()

    return weighted


def make_pace(config: RunConfig, updates: int) -> Pace:
    """How often a run of so many updates logs, evaluates and saves.

    >>> make_pace(RunConfig(evaluations=4), 100).checkpoint_every
    25
    >>> make_pace(RunConfig(checkpoint_every="10m"), 100).checkpoint_seconds
    600.0
    """
    every = max(1, updates // config.evaluations)
    interval = config.checkpoint_interval()
    timed = interval is not None and interval[0] == "seconds"
    between = every if interval is None else updates if timed else int(interval[1])
    return Pace(
        updates=updates,
        accumulate=config.accumulate,
        clip=config.clip,
        autocast=config.autocast,
        log_every=max(1, every // 5),
        evaluate_every=every,
        checkpoint_every=between,
        checkpoint_seconds=interval[1] if interval is not None and timed else None,
        keep_checkpoints=config.keep_checkpoints,
    )


def assemble(
    name: str,
    config: RunConfig,
    problem: Problem,
    out: Path,
    *,
    updates: int,
    resume: bool = False,
    extra: Mapping[str, Any] | None = None,
    reference: Mapping[str, float] | None = None,
    start: Path | None = None,
) -> Engine:
    """One run of a problem, its folder made or reopened, at its last checkpoint.

    Args:
        name: of the recipe, for the record.
        config: arm, seed and pace.
        problem: made for this run.
        out: the run folder.
        updates: optimizer steps, for which the learning rate is planned.
        resume: continue from the folder's last checkpoint.
        extra: more for `config.json`, e.g. the budget.
        reference: see `Engine`.
        start: folder of another run, with whose last weights, optimizer and learning rate this one begins.
    """
    rank, world = rank_and_world()
    begun = Found() if start is None else _begun(start, updates)
    if not resume:
        check_new(out)
        if rank == 0:
            out.mkdir(parents=True, exist_ok=True)  # where the sifter's audits will be
    if world > 1:
        dist.barrier()
        where = next(problem.model.parameters()).device
        gpu = [where.index] if where.type == "cuda" else None
        wrapped = DistributedDataParallel(problem.model, device_ids=gpu)
        problem = replace(problem, model=wrapped)
    done = begun.step or 0
    optimizer = problem.optimizer
    schedule = None if problem.schedule is None else problem.schedule(optimizer, updates)
    audits = out / "audits.jsonl"
    sifter = make_sifter(config, problem, updates, audits, done=done, schedule=schedule)
    settings = {**run_settings(name, config, problem, sifter), "updates": updates, **(extra or {})}
    loader = problem.loader(sifter)  # may refuse: before a folder is made
    found = find_checkpoint(out) if resume else Found()
    if rank > 0:
        folder = RunFolder(out)
    elif resume:
        folder = RunFolder.reopen(out, config=settings, found=found, free=OPERATIONAL)
    else:
        folder = RunFolder.create(
            out,
            config=settings,
            checkpoint_bytes=problem.checkpoint_bytes(),
            keep=config.keep_checkpoints,
        )
    if world > 1:
        dist.barrier()
    task = Task(
        problem.model,
        optimizer,
        loader,
        loss_of(config, problem, sifter),
        problem.evaluate,
        schedule,
        problem.at_end,
    )
    engine = Engine(task, sifter, make_pace(config, updates), folder, reference=reference)
    engine.resume(found)
    if start is not None and begun.state is not None:
        engine.begin(begun.state, Checkpoints(start / "checkpoints").path(done))
    return engine


def _begun(start: Path, updates: int) -> Found:
    """The newest checkpoint of another run, with updates left to make."""
    found = find_checkpoint(start)
    _check_left(start, found.step, updates)
    return found


def check_start(start: Path, updates: int) -> None:
    """Raise unless a folder has a checkpoint with updates left to make; whether it is sound is not looked at."""
    resumable(start)
    _check_left(start, Checkpoints(start / "checkpoints").latest(), updates)


def _check_left(start: Path, done: int | None, updates: int) -> None:
    if done is None:
        raise ValueError(f"{start} has no checkpoint to start from")
    if done >= updates:
        raise ValueError(
            f"{start} has made {done} updates, and {updates} are planned: nothing is left to train"
        )


def find_checkpoint(out: Path) -> Found:
    """The newest checkpoint of a run that verifies, the same on all ranks; says what it passed over."""
    checkpoints = Checkpoints(out / "checkpoints")
    if rank_and_world()[0] > 0:
        step = from_first(lambda: None)
        return Found() if step is None else Found(step, checkpoints.load(step))
    found = Found()

    def newest() -> int | None:
        nonlocal found
        found = checkpoints.newest(resumable(out)["id"])
        return found.step

    from_first(newest)
    for why in found.passed_over:
        say(f"{why}: passed over; continuing from {checkpoints.path(found.step or 0)}")
    return found


def check_new(out: Path) -> None:
    """Raise unless a new run can be written; the rank that writes asks."""
    if rank_and_world()[0] == 0:
        RunFolder.check(out)
