"""A plain run under the eyes of an autopilot that never selects: what advice is made of."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from sifting.advice.phases import make_advice
from sifting.advice.result import Advice
from sifting.autopilot.looks import FORWARD
from sifting.autopilot.pilot import Pilot
from sifting.autopilot.saving import LENGTHS
from sifting.exits.tuned import TunedExit
from sifting.training.assemble import assemble
from sifting.training.config import RunConfig
from sifting.training.engine import Engine
from sifting.training.problem import Problem

STRETCH = 16  # updates at a time
SAID = 2  # updates after which what has been found is in the log
EFFORT = 0.25  # share of the plain run's time that looks and trials may take beside it
NO_HELD_OUT = (
    "no held-out samples: what is said goes by new samples, as long as any came, and by kept loss, which cannot "
    "tell hard from noisy. The recipes here have none; give a Problem of your own held_out="
)


def advise(
    problem: Problem,
    *,
    updates: int,
    part: float = 1.0,
    effort: float = EFFORT,
    config: RunConfig | None = None,
    target: str = "problem",
    start: str | Path | None = None,
    watch: Callable[[Mapping[str, Any]], None] | None = None,
) -> Advice:
    """Will selection pay on this problem, with which settings, and how much?

    Trains the problem's model plainly, and looks meanwhile at what selection would have done; nothing
    is ever selected. What the autopilot would do is by as many held-out samples as it can afford at
    work; what each setting would save is by all that the effort allows. Every run needs a new
    Problem: this one is used up.

    >>> from torch import nn
    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> x = torch.randn(600, 8)
    >>> data = TensorDataset(x, (x[:, 0] > 0).long())
    >>> model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> problem = Problem(
    ...     model=model,
    ...     batches=lambda: DataLoader(data, batch_size=16, shuffle=True),
    ...     loss=lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]),
    ...     evaluate=lambda model: {"accuracy": 0.0},
    ...     optimizer=torch.optim.AdamW(model.parameters()),
    ...     batch=16,
    ...     held_out=lambda: [(x[:200], (x[:200, 0] > 0).long())],
    ... )
    >>> advice = advise(problem, updates=40)
    >>> advice.updates, -1 <= advice.auto.value < 1
    (40, True)

    Args:
        problem: what is trained; with `held_out`, without which little can be told.
        updates: of the run that is planned.
        part: share of it that is trained here; the last phase seen stands for the rest.
        effort: share of the run's time that may be spent beside it.
        config: accumulation, clipping, precision and seed, where they are not the defaults.
        target: name of what is trained.
        start: run folder whose newest checkpoint it begins with; the updates left are what is advised on.
        watch: called with every record, as an engine does.
    """
    if not isinstance(problem, Problem):
        raise TypeError(
            f"problem={problem!r}: give a sifting.training.Problem, what your build(seed) returns"
        )
    check_asked(updates=updates, part=part, effort=effort)
    if config is not None and not isinstance(config, RunConfig):
        raise TypeError(f"config={config!r}: give a sifting.training.RunConfig, or leave it out")
    start = None if start is None else Path(start)
    config = replace(
        config or RunConfig(), arm="auto", evaluations=1, checkpoint_every=None, keep_checkpoints=1
    )
    records: list[Mapping[str, Any]] = []
    trained = start is None and bool(problem.optimizer.state)

    def note(record: Mapping[str, Any]) -> None:
        records.append(record)
        if watch is not None:
            watch(record)

    with tempfile.TemporaryDirectory(prefix="sifting-") as place, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what is found here is not about a run of the user's
        engine = assemble(
            target, config, problem, Path(place) / "plain", updates=updates, start=start
        )
        done, updates = engine.update, updates - engine.update
        seen = min(
            updates, round(part * updates) + 1
        )  # a look comes when the next batch is asked for
        pilot = engine.sifter.pilot
        assert pilot is not None
        pilot.acts, pilot.held_out.budget = False, effort
        if pilot.trials is not None:
            pilot.trials.lengths = LENGTHS
        engine.watch = note
        given_up = _advance(engine, pilot, done + seen)
        engine.finish()
    notes = [] if problem.held_out is not None else [NO_HELD_OUT]
    if problem.held_out is not None and not pilot.held_out.looks:
        why = pilot.held_out.why_not or "no scorer fits the model"
        notes.append(f"held-out samples are not looked at: {why}")
    if trained:
        notes.append(
            "the Problem's optimizer has made updates before: what is said is of a model that is trained already. "
            "A run from new weights needs a new Problem"
        )
    if start is not None:
        notes.append(
            f"begun at update {done} of {start}: {updates} updates are what is left of the run"
        )
    if given_up:
        seen = engine.update - done
        notes.append(
            f"left after {seen} of {updates} updates: nothing that the rest could show would make choosing pay"
        )
    elif part < 1:
        notes.append(
            f"the rest of the run is assumed to be like the last phase seen, at {part:.0%}"
        )
    return make_advice(
        [record for record in records if record["kind"] in ("decision", "trial")],
        target=target,
        updates=updates,
        seen=seen,
        batches=updates * config.accumulate,
        explore=TunedExit.default_explore,  # of fixed rules, which are what the table is about
        notes=notes,
        metrics=engine.progress.last or {},
        overhead=_overhead(pilot, problem.batch, updates * config.accumulate),
    )


def _advance(engine: Engine, pilot: Pilot, last: int) -> bool:
    """Train until an update, or until choosing is found to take too long to pay: whether it is."""
    while engine.update < last and not pilot.pacing.hopeless:
        before = engine.update
        engine.advance(min(STRETCH, last - before))
        if engine.update == before:  # stopped
            return False
    if engine.update < last:  # until it has said so
        engine.advance(min(SAID, last - engine.update))
    return engine.update < last


def check_asked(*, updates: int, part: float, effort: float) -> None:
    """Raise where these are not what `advise` takes."""
    if isinstance(updates, bool) or not isinstance(updates, int) or updates < 1:
        raise ValueError(f"updates={updates!r}: give the updates of the run that is planned")
    if not isinstance(part, int | float) or not 0 < part <= 1:
        raise ValueError(f"part={part!r} is not in (0, 1]: it is a share of the updates")
    if not isinstance(effort, int | float) or not 0 < effort <= 10:
        raise ValueError(f"effort={effort!r} is not in (0, 10]: it is a share of the run's time")


def _overhead(pilot: Pilot, size: int, steps: int) -> float:
    """What an autopilot at work spends on looks and rehearsals, as a share of a run.

    Args:
        pilot: that has watched it.
        size: samples of a step.
        steps: of the run.
    """
    rehearsals = pilot.meter.counts["rehearsals"] * (pilot.pacing.cost or 0.0)
    looks = pilot.held_out.at_work
    looking = len(looks.steps) * looks.samples * FORWARD / size
    return (rehearsals + looking) / steps
