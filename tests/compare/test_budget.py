from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from torch import randint, randn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter
from sifting.compare.budget import ArmWork, RunBudget, parse_budget
from sifting.measure.audit import default_period
from sifting.selection.schedule import Schedule
from tests.helpers.models import Net

TABLE = {"data": 0.01, "scoring": 1.0, "auditing": 2.0, "forward": 1.0, "backward": 2.0}


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("90s", "seconds", 90),
        ("15m", "seconds", 900),
        ("1.5 h", "seconds", 5400),
        ("2000 updates", "updates", 2000),
        ("2000u", "updates", 2000),
        ("64000n", "samples", 64000),
        ("1 sample", "samples", 1),
    ],
)
def test_budgets_are_read(text: str, kind: Any, amount: float) -> None:
    assert parse_budget(text) == RunBudget(kind, amount)


def test_a_budget_may_be_the_baselines_time() -> None:
    assert parse_budget("baseline:2000u") == RunBudget("updates", 2000, of_baseline=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", r"budget='soon' is not understood: give seconds \(90s"),
        ("90", "not understood"),
        ("-5s", "not understood"),
        ("90 days", "not understood"),
        ("0u", "give more than 0"),
        ("1.5u", "give a whole number of updates"),
        ("baseline:90s", "after 'baseline:' give updates"),
        ("sift:90u", "not understood"),
        ("total:soon", "total='soon' is not understood: give the time of all runs together"),
        ("total:90u", "total='90u': give the time of all runs together"),
    ],
)
def test_bad_budgets_are_named(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_budget(text)


@pytest.mark.parametrize("draws", ["batch", "samples"])
@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"keep": 1.0},
        {"keep": 0.5},
        {"keep": 0.25, "audit_every": 3},
        {"keep": 0.5, "warmup_steps": 6, "audit_every": 2},
        {"keep": 0.5, "warmup_steps": 5, "every": 3, "stop_step": 20},
    ],
)
def test_work_is_counted_as_the_sifter_does_it(
    options: dict[str, Any], accumulate: int, draws: str
) -> None:
    updates = 8
    options = {"audit_every": 0, **options}
    sifter = Sifter(Net(), exit="last", score="entropy", explore=0.0, draws=draws, **options)
    sifter.auditor.silent = True  # of an untrained net, it is no news that it chooses badly
    data = TensorDataset(randn(640, 8), randint(0, 5, (640,)))
    batches = iter(sifter(DataLoader(data, batch_size=16)))
    for _ in range(updates * accumulate):
        next(batches)
    by_samples = draws == "samples"
    work = ArmWork(sifter.schedule, 16, accumulate, sifter.auditor.every, by_samples=by_samples)
    counts = work.counts(updates)
    assert counts == {name: sifter.meter.counts[name] for name in counts}


@pytest.mark.parametrize("warmup", [None, 0.1, 0.5])
@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("seconds", [6.0, 50.0, 333.3])
def test_a_time_budget_is_spent_and_not_exceeded(
    warmup: float | None, accumulate: int, seconds: float
) -> None:
    work = ArmWork(Schedule(0.5), 32, accumulate, 4, warmup)
    updates = work.affordable(TABLE, seconds)
    assert work.seconds(TABLE, updates) <= seconds < work.seconds(TABLE, updates + 1)


def test_scoring_costs_updates_and_warm_up_spares_them() -> None:
    plain, sift, warm = (
        ArmWork(Schedule(keep), 32, audit_every=0, warmup=share).affordable(TABLE, 1000.0)
        for keep, share in ((1.0, None), (0.5, None), (0.5, 0.5))
    )
    assert plain == int(1000 / 3.32)
    assert sift == int(1000 / 4.32)
    assert sift < warm < plain


def test_a_table_without_an_update_is_refused() -> None:
    with pytest.raises(ValueError, match="no time of an update"):
        ArmWork(Schedule(0.5), 32).affordable({"data": 1.0}, 5.0)


def test_selection_that_ends_before_the_run_is_not_paid_for_after_it() -> None:
    work = ArmWork(Schedule(0.5), candidates=8, by_samples=True, warmup=0.25, until=0.75)
    counts = work.counts(40)
    assert counts["selections"] == 20  # from the 10th update to the 30th
    assert counts["candidates_seen"] == 20 * 16 + 20 * 8


def test_batches_of_one_sample_are_not_charged_for_choosing() -> None:
    work = ArmWork(Schedule(0.5), candidates=1, audit_every=1)
    assert work.counts(3) == {
        "candidates_seen": 3,
        "selections": 0,
        "audits": 0,
        "losses_read": 0,
    }


def test_audits_that_read_candidates_come_as_seldom_as_the_sifters() -> None:
    work = ArmWork(Schedule(0.25), 8, audit_every=None, by_samples=True)
    assert work.counts(1200)["audits"] == 1200 // default_period(0.25)
    reading = replace(work, reads=True)
    assert reading.counts(1200)["audits"] == 1200 // default_period(0.25, reads=True) == 4


@pytest.mark.parametrize(("listens", "read"), [("step", 6), ("selection", 4), ("", 0)])
def test_reading_losses_is_paid_for_by_those_that_do(listens: Any, read: int) -> None:
    work = ArmWork(Schedule(0.5, warmup_steps=2), candidates=8, listens=listens)
    assert work.counts(6)["losses_read"] == read
    table = {**TABLE, "observing": 0.5}
    assert work.seconds(table, 6) == pytest.approx(work.seconds(TABLE, 6) + 0.5 * read)
    assert work.affordable(table, work.seconds(table, 6)) == 6
