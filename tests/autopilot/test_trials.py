"""Trials leave no trace, find harm, and stay within their budget."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, WeightedRandomSampler

from sifting import Sifter
from sifting.autopilot import pilot as pilots
from sifting.autopilot.options import Option
from sifting.autopilot.trial import Trial
from sifting.autopilot.trials import TrialOutcome, Trials, outcome, piece_length
from sifting.rng import RandomState

STEPS = 24


class Shaken(Dataset[tuple[Tensor, int]]):
    """Samples that are augmented at random, by every stream there is, one of its own too."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(160, 1, 8, 8, generator=generator)
        self.y = (self.x.mean(dim=(1, 2, 3)) > 0).long().tolist()
        self.own = random.Random(3)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        shift = random.randrange(3) + self.own.randrange(2)
        return self.x[index].roll(shift, -1) + 0.1 * torch.randn(1, 8, 8), self.y[index]


def make_model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(256, 2),
    )


def loss_of(model: nn.Module, batch: Any) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}


def train(
    monkeypatch: pytest.MonkeyPatch,
    *,
    tries: bool,
    optimizer: str = "adamw",
    scorer: str = "input",
    sampler: Any = None,
    stop: int = STEPS,
    accumulate: int = 1,
    resumed: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A run that never selects, with trials or without; everything that a trial could touch."""
    wanted = Option(scorer, 2)
    monkeypatch.setattr(pilots, "decide", lambda judged, current, held_out: (wanted, "forced"))
    monkeypatch.setattr(Trials, "_length", lambda self, step, size: 3)
    model, data = make_model(), Shaken()
    held_out = [(data.x[:128], torch.tensor(data.y[:128]))]
    opt = OPTIMIZERS[optimizer](model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=STEPS)
    more: dict[str, Any] = {"loss": loss_of, "optimizer": opt} if tries else {}
    trial = Trial(held_out=held_out, updates=100_000, accumulate=accumulate, **more)
    torch.manual_seed(5)
    random.seed(5)
    sifter = Sifter(model, trial=trial)
    assert sifter.pilot is not None
    sifter.pilot.acts = False
    monkeypatch.setattr(pilots, "DECIDE_EVERY", 1)
    loader: Any = DataLoader(data, batch_size=16, shuffle=sampler is None, sampler=sampler)
    if resumed is not None:
        model.load_state_dict(resumed["model"])
        opt.load_state_dict(resumed["optimizer"])
        schedule.load_state_dict(resumed["schedule"])
        sifter.load_state_dict(resumed["sifter"])
        data.own.setstate(resumed["own"])
        resumed["streams"].restore()
    batches: list[Tensor] = []
    done = 0 if resumed is None else resumed["done"]
    hooks = []
    opt.register_step_post_hook(lambda *_: hooks.append(1))
    while done < stop:
        for x, y in sifter(loader):
            if done == 7 and not sifter.pilot.held_out.looks:
                raise AssertionError("the run does not look at held-out samples")
            batches.append(x.clone())
            loss_of(model, (x, y)).backward()
            done += 1
            if done % accumulate == 0:
                opt.step()
                opt.zero_grad()
                schedule.step()
            if done == stop:
                break
    return {
        "model": copy.deepcopy(model.state_dict()),
        "optimizer": copy.deepcopy(opt.state_dict()),
        "schedule": schedule.state_dict(),
        "sifter": copy.deepcopy(sifter.state_dict()),
        "own": data.own.getstate(),
        "streams": RandomState.now(),
        "done": done,
        "grads": [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        "modes": [module.training for module in model.modules()],
        "batches": batches,
        "hooks": len(hooks),
        "trials": sifter.stats().trial_updates,
        "records": [r for r in sifter.pilot.records if r["kind"] == "trial"],
    }


def plain(value: Any) -> Any:
    """Comparable, however it is nested."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.detach().contiguous().numpy().tobytes()
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return value


def look_early(monkeypatch: pytest.MonkeyPatch) -> None:
    from sifting.autopilot import held_out
    from sifting.autopilot.looks import LookPlan

    monkeypatch.setattr(
        held_out, "plan_looks", lambda *a, **k: LookPlan((3, 6, 12, 17), k["held_out"])
    )


ASIDE = ("pilot", "meter")


@pytest.mark.parametrize(
    ("optimizer", "scorer", "accumulate", "weighted"),
    [("adamw", "input", 1, False), ("sgd", "memory", 1, False), ("adamw", "memory", 2, True)],
)
def test_a_run_with_trials_that_never_selects_is_the_run_without(
    monkeypatch: pytest.MonkeyPatch, optimizer: str, scorer: str, accumulate: int, weighted: bool
) -> None:
    look_early(monkeypatch)

    def sampler() -> Any:
        return WeightedRandomSampler([1.0] * 80 + [2.0] * 80, 160) if weighted else None

    settings: Any = {"optimizer": optimizer, "scorer": scorer, "accumulate": accumulate}
    without = train(monkeypatch, tries=False, sampler=sampler(), **settings)
    tried = train(monkeypatch, tries=True, sampler=sampler(), **settings)
    assert without["trials"] == 0
    assert tried["trials"] >= 12
    assert tried["records"]
    for name in ("model", "optimizer", "schedule", "own", "grads", "modes", "batches", "hooks"):
        assert plain(tried[name]) == plain(without[name]), name
    for name in ("torch", "python"):
        assert plain(getattr(tried["streams"], name)) == plain(getattr(without["streams"], name))
    for name in tried["sifter"].keys() - set(ASIDE):
        assert plain(tried["sifter"][name]) == plain(without["sifter"][name]), name
    counts = [run["sifter"]["meter"]["counts"] for run in (tried, without)]
    differ = {name for name in counts[0] if counts[0][name] != counts[1][name]}
    assert differ == {"trial_updates", "held_out_seen"}


def test_a_resumed_run_tries_what_the_whole_one_did(monkeypatch: pytest.MonkeyPatch) -> None:
    look_early(monkeypatch)
    whole = train(monkeypatch, tries=True, scorer="memory")
    first = train(monkeypatch, tries=True, scorer="memory", stop=10)
    rest = train(monkeypatch, tries=True, scorer="memory", resumed=first)
    assert plain(rest["model"]) == plain(whole["model"])
    assert rest["trials"] == whole["trials"]
    assert plain(rest["records"]) == plain(whole["records"])


def test_an_option_that_harms_is_vetoed_and_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    look_early(monkeypatch)

    def decide(judged: Any, current: Option, held_out: bool) -> tuple[Option, str]:
        open_ = [one.option for one in judged if one.option.ratio > 1 and not one.vetoed]
        return (open_[0], "open") if open_ else (pilots.PLAIN, "all vetoed")

    worse = TrialOutcome(3, 2, 0.5, 0.2, 0.01)
    tried: list[Option] = []

    def find(self: Trials, option: Option, *_: Any) -> TrialOutcome:
        tried.append(option)
        return worse

    monkeypatch.setattr(Trials, "_length", lambda self, step, size: 3)
    monkeypatch.setattr(Trials, "_try", find)
    monkeypatch.setattr(pilots, "decide", decide)
    model, data = make_model(), Shaken()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    trial = Trial(
        held_out=[(data.x, torch.tensor(data.y))], updates=100_000, loss=loss_of, optimizer=opt
    )
    sifter = Sifter(model, trial=trial)
    for x, y in sifter(DataLoader(data, batch_size=16)):
        loss_of(model, (x, y)).backward()
    assert sifter.pilot is not None
    assert sifter.stats().selections == 0
    # harm at 1 in 2 tells of 1 in 4 and 1 in 8; it is tried again when the run is half as long again
    assert sorted(map(str, tried)) == sorted(
        2 * [f"1 in 2 by {name}" for name in sifter.pilot.exit.competing]
    )
    records = [r for r in sifter.pilot.records if r["kind"] == "trial"]
    assert [r["harms"] for r in records] == [True] * len(tried)


def test_a_piece_finds_the_harm_of_choosing_the_wrongly_labelled() -> None:
    """One in four labels is wrong and the exit knows which: to train those must be found out."""
    torch.manual_seed(0)
    x = torch.randn(400, 8)
    y = (x[:, 0] > 0).long()
    wrong = torch.arange(400) % 4 == 0
    labels = torch.where(wrong, 1 - y, y)
    data = torch.utils.data.TensorDataset(x, labels, wrong.float())
    model = nn.Linear(8, 2)
    opt = torch.optim.SGD(model.parameters(), lr=0.5)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    held_out = [(x[:200], y[:200], wrong[:200].float())]
    trial = Trial(held_out=held_out, updates=100_000, loss=loss, optimizer=opt)
    sifter = Sifter(
        model, trial=trial, forward=lambda model, batch: model(batch[0]), labels=lambda b: b[1]
    )
    pilot = sifter.pilot
    assert pilot is not None
    assert pilot.trials is not None
    pilot.acts = False
    for batch in sifter(DataLoader(data, batch_size=16, shuffle=True)):
        loss(model, batch).backward()
        opt.step()
        opt.zero_grad()
    option = Option(pilot.exit.looks, 2)
    before = copy.deepcopy(model.state_dict())
    rehearse = sifter._scorer.rehearse
    harmful = lambda batch, ids, learn=True: {option.scorer: batch[2]}  # noqa: E731
    sifter._scorer.rehearse = harmful  # type: ignore[method-assign]
    assert pilot.trials.harms(option, 0.0, step=5000, size=16)
    sifter._scorer.rehearse = lambda batch, ids, learn=True: {option.scorer: 1 - batch[2]}  # type: ignore[method-assign]
    assert not pilot.trials.harms(option, 0.0, step=9000, size=16)
    sifter._scorer.rehearse = rehearse  # type: ignore[method-assign]
    assert plain(model.state_dict()) == plain(before)
    assert pilot.trials.vetoed(Option(option.scorer, 4), 10_000) is False
    harm, level = pilot.trials.take_records()
    assert harm["difference"] > 2 * harm["error"]
    assert level["difference"] < 0


def test_trials_and_looks_together_stay_within_two_percent() -> None:
    for updates in (3000, 10_000, 100_000):
        for samples in (100, 1000):
            look = samples / 3 / 64
            left = 0.02 * updates - 9 * look
            spent, trials = 0.0, 0
            while (length := piece_length(left - spent, look=look)) > 0:
                assert length >= 20
                spent += 4 * (length + look)
                trials += 1
            assert spent <= max(0.0, left)
            assert trials or left < 80 + 4 * look


@pytest.mark.parametrize(
    ("difference", "error", "harms"), [(0.05, 0.01, True), (0.015, 0.01, False), (-1.0, 0.1, False)]
)
def test_harm_is_two_standard_errors(difference: float, error: float, harms: bool) -> None:
    assert TrialOutcome(40, 2, 1.0, difference, error).harms is harms


def test_a_piece_that_diverges_harms_unless_the_plain_one_does_too() -> None:
    sound, broken = torch.ones(2, 10), torch.full((2, 10), torch.nan)
    assert outcome(sound, broken, updates=20).harms
    assert not outcome(broken, broken, updates=20).harms


def test_the_error_has_samples_and_draws_in_it() -> None:
    plain_KM = torch.zeros(2, 100)
    apart = torch.stack([torch.zeros(100), torch.ones(100)])
    assert outcome(plain_KM, apart, updates=20).error == pytest.approx((0.5 / 2) ** 0.5)
    assert not outcome(plain_KM, apart, updates=20).harms


def test_loaders_without_indices_have_no_pieces_and_it_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    look_early(monkeypatch)
    monkeypatch.setattr(
        pilots, "decide", lambda judged, current, held_out: (Option("input", 2), "forced")
    )
    model, data = make_model(), Shaken()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    batches = [(data.x[i : i + 16], torch.tensor(data.y[i : i + 16])) for i in range(0, 160, 16)]
    held_out = [(data.x[:128], torch.tensor(data.y[:128]))]
    trial = Trial(held_out=held_out, updates=100_000, loss=loss_of, optimizer=opt)
    sifter = Sifter(model, trial=trial)
    assert sifter.pilot is not None
    sifter.pilot.acts = False
    with caplog.at_level("INFO", logger="sifting"):
        for batch in sifter(batches):
            loss_of(model, batch).backward()
    assert sifter.stats().trial_updates == 0
    assert any(
        "a list cannot be read beside the run" in record.message for record in caplog.records
    )


def test_longer_plain_pieces_say_what_a_difference_is_worth_and_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    look_early(monkeypatch)
    model, data = make_model(), Shaken()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    held = [(data.x[i : i + 16], torch.tensor(data.y[i : i + 16])) for i in range(0, 160, 16)]
    trial = Trial(held_out=held, updates=100_000, loss=loss_of, optimizer=opt)
    sifter = Sifter(model, trial=trial)
    assert sifter.pilot is not None
    for batch in sifter(DataLoader(data, 16, shuffle=True)):
        loss_of(model, batch).backward()
        opt.step()
        opt.zero_grad()
    trials = sifter.pilot.trials
    assert trials is not None
    before = sifter.stats().trial_updates
    weights = [parameter.clone() for parameter in model.parameters()]
    trials.lengths = (1.25, 1.5)
    trials.harms(Option("input", 2), 0.0, step=5000, size=16)
    record = trials.take_records()[-1]
    spent = record["draws"] * sum(round(n * record["updates"]) for n in (1, 1, 1.25, 1.5))
    assert sifter.stats().trial_updates - before == spent
    assert record["saving"] is None or record["saving"]["low"] <= record["saving"]["value"]
    assert all(torch.equal(a, b) for a, b in zip(weights, model.parameters(), strict=True))
