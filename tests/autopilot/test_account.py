"""What steps stand for, and a run that ends sooner by what they gain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
)
from torch.utils.data import DataLoader

from sifting import Sifter, Trial
from sifting.autopilot.account import Account
from sifting.autopilot.options import Option, PilotDecision
from sifting.training.assemble import assemble
from sifting.training.config import RunConfig
from sifting.training.problem import Problem
from sifting.training.run_folder import read_run
from tests.helpers.piloted import BATCH, Points, fingerprint, held_out, looking, make_model

UPDATES = 200


def one_cycle(updates: int, model: nn.Module | None = None) -> tuple[Any, LRScheduler]:
    optimizer = torch.optim.AdamW((model or nn.Linear(1, 1)).parameters(), lr=1e-2)
    return optimizer, OneCycleLR(optimizer, 1e-2, total_steps=updates)


def made(worth: float) -> PilotDecision:
    return PilotDecision(0, Option("input", 2), "told so", 1.2, worth)


def test_a_schedule_is_moved_on_by_what_is_gained() -> None:
    optimizer, schedule = one_cycle(30)
    account = Account(Trial(updates=30, schedule=schedule))
    steps = 0
    while not account.over:
        account.hand_out(1.0 if steps < 10 else 1.25)
        optimizer.step()
        schedule.step()  # the user's own
        account.close()
        steps += 1
    assert steps == 10 + 16
    assert account.handed == 30.0
    assert schedule.last_epoch == 30
    assert account.gained == 4.0


def test_batches_that_make_an_update_are_not_torn_apart() -> None:
    optimizer, schedule = one_cycle(10)
    account = Account(Trial(updates=20, schedule=schedule, accumulate=2))
    batches = 0
    while not account.over:
        account.hand_out(1.5)
        batches += 1
        if batches % 2 == 0:
            optimizer.step()
            schedule.step()
        account.close()
    assert batches == 14  # 13.3 would do
    assert schedule.last_epoch == 10


def test_a_schedule_has_no_more_steps_where_several_batches_make_an_update() -> None:
    """Counted in the middle of an update it had one too many at the end: OneCycleLR raises there."""
    optimizer, schedule = one_cycle(100)
    account = Account(Trial(updates=400, schedule=schedule, accumulate=4))
    batches = 0
    while not account.over:
        account.hand_out(1.0 if batches < 80 else 1.3)
        batches += 1
        if batches % 4 == 0:
            optimizer.step()
            schedule.step()
        account.close()
    assert batches == 328
    assert schedule.last_epoch == 100


def test_neither_has_it_where_a_pass_ends_with_an_update_of_fewer_batches() -> None:
    """As in a Trainer, whose epochs of ten batches are of three updates."""
    optimizer, schedule = one_cycle(12)
    account = Account(Trial(updates=48, schedule=schedule, accumulate=4))
    updates = passes = 0
    while not account.over:
        passes += 1
        for count in (4, 4, 2):
            if account.over:
                break
            for _ in range(count):
                account.hand_out(1.3)
            for _ in range(count):
                account.close(passes)
            optimizer.step()
            schedule.step()
            updates += 1
    assert updates == 10
    assert schedule.last_epoch == 12


def test_several_schedules_at_once_are_moved_on_together() -> None:
    optimizer, _ = one_cycle(10)
    schedule = ChainedScheduler([LinearLR(optimizer, 0.1), ExponentialLR(optimizer, 0.9)])
    account = Account(Trial(updates=10, schedule=schedule))
    for _ in range(4):
        account.hand_out(1.5)
        optimizer.step()
        schedule.step()
        account.close()
    assert schedule._schedulers[0].last_epoch == 6


def test_batches_that_are_fetched_ahead_count_when_they_are_trained() -> None:
    optimizer, schedule = one_cycle(30)
    account = Account(Trial(updates=30, schedule=schedule))
    for _ in range(3):
        account.hand_out(2.0)
    assert (account.handed, account.trained, schedule.last_epoch) == (6.0, 0.0, 0)
    optimizer.step()
    schedule.step()
    account.close()
    assert (account.trained, schedule.last_epoch) == (2.0, 2)


def test_without_a_schedule_nothing_ends_sooner() -> None:
    account = Account(Trial(updates=2))
    for _ in range(9):
        account.hand_out(3.0)
        account.close()
    assert not account.over
    assert account.handed == 27.0


def test_a_schedule_that_is_stepped_by_epochs_is_refused() -> None:
    _, schedule = one_cycle(100)
    account = Account(Trial(updates=100, schedule=schedule))
    with pytest.raises(ValueError, match=r"stepped 0 times in \d+ updates"):
        for _ in range(20):
            account.hand_out(1.5)
            account.close()


@pytest.mark.parametrize("often", [0, 3])
def test_that_is_said_before_anything_is_selected(often: int) -> None:
    optimizer, _ = one_cycle(300)
    schedule = ExponentialLR(optimizer, 0.9)
    account = Account(Trial(updates=100, schedule=schedule))
    optimizer.step()
    with pytest.raises(ValueError, match=rf"stepped {20 * often} times in 20 updates"):
        for _ in range(50):
            account.hand_out(1.0)
            for _ in range(often):
                schedule.step()
            account.close()


def test_a_run_that_is_longer_than_was_said_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is looked at any more: what was selected by then stayed, silently, to the end."""
    with caplog.at_level("INFO", logger="sifting"):
        for given, said in (({"held_out": [0]}, 1), ({}, 0)):
            caplog.clear()
            account = Account(Trial(updates=100, **given))
            for _ in range(105):
                account.hand_out(1.5)
            assert not caplog.messages
            for _ in range(95):
                account.hand_out(1.0)
            assert sum("beyond the 100 batches" in line for line in caplog.messages) == said


def test_whoever_asks_for_batches_after_the_end_is_told(caplog: pytest.LogCaptureFixture) -> None:
    optimizer, schedule = one_cycle(3)
    account = Account(Trial(updates=3, schedule=schedule))
    with caplog.at_level("INFO", logger="sifting"):
        while not account.ends():
            account.hand_out(1.5)
            optimizer.step()
            schedule.step()
            account.close()
        assert not caplog.messages, "as planned"
        assert account.ends()
        assert account.ends()
    (line,) = caplog.messages
    assert "2 were, which stand for the 3 that updates= of the Trial says" in line


def test_what_trial_takes_as_a_schedule() -> None:
    optimizer, schedule = one_cycle(10)
    with pytest.raises(ValueError, match="updates= is missing"):
        Trial(schedule=schedule)
    with pytest.raises(TypeError, match="schedule=ReduceLROnPlateau"):
        Trial(updates=10, schedule=ReduceLROnPlateau(optimizer))
    with pytest.raises(TypeError, match="schedule=function"):
        Trial(updates=10, schedule=one_cycle)  # type: ignore[arg-type]


def test_it_goes_on_from_its_state() -> None:
    account = Account(Trial(updates=9))
    for worth in (1.0, 1.5, 1.25):
        account.hand_out(worth)
    account.close()
    again = Account(Trial(updates=9))
    again.load_state_dict(account.state_dict())
    assert again.state_dict() == account.state_dict()
    with pytest.raises(ValueError, match="handed"):
        again.load_state_dict({**account.state_dict(), "handed": "much"})
    assert again.state_dict() == account.state_dict()


def test_a_loop_of_ones_own_ends_sooner_at_the_end_of_its_schedule() -> None:
    model = make_model()
    optimizer, schedule = one_cycle(UPDATES, model)
    trial = Trial(held_out=held_out(), updates=UPDATES, schedule=schedule)
    sifter = looking(Sifter(model, trial=trial), 40, 80, 120, 160)
    loader, steps = DataLoader(Points(), BATCH, shuffle=True), 0
    for _ in range(9):  # epochs, more than needed
        for x, y in sifter(loader):
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            steps += 1
    assert sifter.pilot is not None
    assert sifter.pilot.decisions
    assert steps == sifter.step < 0.97 * UPDATES
    assert schedule.last_epoch == UPDATES  # the learning rate is decayed
    assert UPDATES <= sifter.pilot.account.handed < UPDATES + 2


def problem(*, noisy: bool = False) -> Problem:
    model = make_model()

    def cosine(optimizer: torch.optim.Optimizer, updates: int) -> LRScheduler:
        return LambdaLR(optimizer, lambda step: max(0.0, 1 - step / updates))

    return Problem(
        model=model,
        batches=lambda: DataLoader(Points(noisy=noisy), BATCH, shuffle=True),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        evaluate=lambda model: {"accuracy": 0.5},
        optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2),
        schedule=cosine,
        batch=BATCH,
        held_out=held_out,
    )


def begin(out: Path, arm: str, *, resume: bool = False, **more: Any) -> Any:
    torch.manual_seed(3)
    config = RunConfig(arm=arm, evaluations=5, checkpoint_every="20u")
    engine = assemble(
        "points", config, problem(**more), out, updates=UPDATES, resume=resume, reference=None
    )
    pilot = engine.sifter.pilot
    assert pilot is not None
    pilot.trials = None
    looking(engine.sifter, *((20, 60, 100, 180) if more.get("noisy") else (40, 80, 120, 160)))
    return engine


def test_a_run_ends_sooner_and_is_evaluated_as_often(tmp_path: Path) -> None:
    engine = begin(tmp_path / "run", "auto")
    assert engine.run() == "finished"
    run = read_run(tmp_path / "run")
    steps = [record["step"] for record in run.metrics if record["kind"] == "eval"]
    assert run.summary["planned"] == UPDATES
    assert run.summary["updates"] == steps[-1] == engine.update < 0.97 * UPDATES
    assert 5 <= len(steps) <= 6
    assert engine.task.schedule.last_epoch == UPDATES
    assert engine.task.optimizer.param_groups[0]["lr"] == 0.0


def test_auto_full_makes_all_updates(tmp_path: Path) -> None:
    engine = begin(tmp_path / "run", "auto-full")
    assert engine.run() == "finished"
    assert engine.update == UPDATES
    assert engine.sifter.stats().selections > 0


def test_a_run_that_selects_nothing_makes_all_updates(tmp_path: Path) -> None:
    engine = begin(tmp_path / "run", "auto", noisy=True)
    assert engine.run() == "finished"
    assert (engine.update, engine.sifter.stats().selections) == (UPDATES, 0)


def test_a_resumed_run_ends_where_the_whole_one_does(tmp_path: Path) -> None:
    whole = begin(tmp_path / "whole", "auto")
    whole.run()
    part = begin(tmp_path / "part", "auto")
    part.advance(130)
    assert part.sifter.pilot.account.gained > 0
    part.save()
    part.cut_off("for a while")
    again = begin(tmp_path / "part", "auto", resume=True)
    again.run()
    assert again.update == whole.update
    assert again.sifter.pilot.account.state_dict() == whole.sifter.pilot.account.state_dict()
    pairs = zip(fingerprint(whole.task.model), fingerprint(again.task.model), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_what_a_decision_is_sure_to_be_worth_is_handed_out() -> None:
    model = make_model()
    sifter = Sifter(model, trial=Trial(held_out=held_out(), updates=50))
    assert sifter.pilot is not None
    sifter.pilot.decision = made(1.5)
    loader = DataLoader(Points(160), BATCH)
    for x, y in sifter(loader):
        F.cross_entropy(model(x), y).backward()
    assert sifter.pilot.account.handed == 15.0
    sifter.pilot.acts = False  # only told: every step is a plain one
    sifter.pilot.decision = replace(made(1.5), option=Option("", 1))
    for x, y in sifter(loader):
        F.cross_entropy(model(x), y).backward()
    assert sifter.pilot.account.handed == 25.0
