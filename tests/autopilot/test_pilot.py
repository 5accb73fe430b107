"""The autopilot as a user has it: plain until it selects, resumed, told why, and never in the way."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from sifting import Sifter, Trial
from sifting.autopilot.evidence import Evidence
from sifting.autopilot.judging import BELIEVED
from sifting.autopilot.looks import LookPlan
from sifting.autopilot.options import PLAIN, Option
from sifting.autopilot.pilot import Pilot
from sifting.measure.learning import speedup
from tests.helpers.piloted import (
    BATCH,
    STEPS,
    Points,
    draw,
    fingerprint,
    held_out,
    looking,
    make_model,
    train,
)


def test_what_never_selects_is_the_plain_loop_bit_for_bit() -> None:
    """With looks, rehearsals and decisions; augmentation, dropout and shuffling from global streams."""
    found = []
    for sifts in (False, True):
        model, data = make_model(), Points(noisy=True, jitter=0.3)
        torch.manual_seed(7)
        loader = DataLoader(data, BATCH, shuffle=True)
        batches: Any = loader
        if sifts:
            trial = Trial(held_out=held_out(), updates=STEPS)
            sifter = looking(Sifter(model, trial=trial), 20, 60, 100, 180)
            batches = sifter(loader)
        given = [x.clone() for x, _ in train(model, batches)]
        found.append((given, fingerprint(model), torch.rand(4)))
    assert sifter.pilot is not None
    assert sifter.pilot.decisions == []
    assert sifter.stats().held_out_seen == 4 * 300
    assert sifter.stats().rehearsals > 35
    for plain, piloted in zip(*found, strict=True):
        pairs = (
            [(plain, piloted)] if isinstance(plain, Tensor) else zip(plain, piloted, strict=True)
        )
        assert all(torch.equal(a, b) for a, b in pairs)


def test_it_selects_where_progress_is_made_on_what_it_would_keep() -> None:
    model = make_model()
    sifter = looking(Sifter(model, trial=Trial(held_out=held_out(), updates=STEPS)), 40, 80, 120)
    assert sifter.pilot is not None
    sifter.pilot.pacing.cost = 0.001  # rehearsed every other step
    for _ in train(model, sifter(DataLoader(Points(), BATCH, shuffle=True))):
        pass
    records = sifter.pilot.take_records()
    assert [record["kind"] for record in records] == ["decision"] * 3
    first = sifter.pilot.decisions[0]
    assert first.option == Option("input", 2)
    assert "of the progress on held-out samples" in first.why
    stats = sifter.stats()
    assert stats.option == "keeps 1 in 2 by input"
    assert stats.selections == STEPS - first.step
    assert stats.candidates_seen == BATCH * (STEPS + stats.selections)
    assert 0 < (stats.saving or 0) < 0.5
    # predicted losses are judged by where progress is made, too: from the look after they are known on
    shares = {(one["scorer"], one["ratio"]) for one in records[-1]["shares"]}
    assert ("predicted", 2) in shares
    most = speedup(BELIEVED, ratio=2, explore=sifter.pilot.explore)
    assert 1 < sifter.pilot.decision.worth <= most
    assert "autopilot: keeps 1 in 2 by input" in str(stats)
    assert not sifter.pilot.take_records()


def test_a_run_that_is_stopped_anywhere_goes_on_as_if_it_had_not_been() -> None:
    def run(stop: int | None) -> tuple[list[Tensor], list[Any], dict[str, Any]]:
        model = make_model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        data = Points()
        trial = Trial(held_out=held_out(), updates=160)

        def sift(model: nn.Module) -> Sifter:
            return looking(Sifter(model, trial=trial, audit_every=7), 40, 80, 120)

        sifter = sift(model)
        steps = train(model, sifter(DataLoader(data, BATCH, shuffle=True)), optimizer=optimizer,
                      steps=stop or 160)  # fmt: skip
        torch.manual_seed(11)
        for _ in steps:
            pass
        if stop is not None:
            saved = copy.deepcopy(
                (
                    sifter.state_dict(),
                    model.state_dict(),
                    optimizer.state_dict(),
                    torch.get_rng_state(),
                )
            )
            model = make_model()
            model.load_state_dict(saved[1])
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
            optimizer.load_state_dict(saved[2])
            sifter = sift(model)
            sifter.load_state_dict(saved[0])
            torch.set_rng_state(saved[3])
            for _ in train(model, sifter(DataLoader(data, BATCH, shuffle=True)), optimizer=optimizer,
                           steps=160 - stop):  # fmt: skip
                pass
        assert sifter.pilot is not None
        return fingerprint(model), sifter.pilot.decisions, dict(sifter.meter.counts)

    whole = run(None)
    assert whole[1]
    for stop in (40, 41, 80, 97, 120):  # at looks, beside them, in selection
        stopped = run(stop)
        assert all(torch.equal(a, b) for a, b in zip(whole[0], stopped[0], strict=True)), stop
        assert [d.to_plain() for d in whole[1]] == [d.to_plain() for d in stopped[1]]
        assert whole[2] == stopped[2]


def test_without_held_out_samples_new_ones_stand_in_for_them() -> None:
    model = make_model()
    sifter = Sifter(model)
    assert sifter.pilot is not None
    sifter.pilot.pacing.cost = 0.01  # as of a model that is worth choosing for
    size = 2 * BATCH  # enough new samples to be sure
    for _ in train(model, sifter(DataLoader(Points(2 * STEPS * size), size, shuffle=True))):
        pass
    first = sifter.pilot.decisions[0]
    assert first.option == Option("input", 2)
    assert first.step == 200  # the first two windows are over
    assert "of the progress on new samples" in first.why
    assert sifter.stats().learning_share is not None


def test_what_new_samples_spoke_for_is_dropped_once_audits_speak_against_it() -> None:
    """New samples come in the first pass only, and the rest of the run is trained by what they said."""
    model, size = make_model(), 2 * BATCH
    sifter = Sifter(model, audit_every=1)
    pilot = sifter.pilot
    assert pilot is not None
    pilot.pacing.cost = 0.01
    loader = DataLoader(Points(2 * STEPS * size), size, shuffle=True)
    for _ in train(model, sifter(loader)):
        pass
    assert pilot.option == Option("input", 2)
    assert len(pilot.audits) == 10
    again = Sifter(make_model())
    again.load_state_dict(sifter.state_dict())
    assert again.pilot is not None
    assert again.pilot.audits == pilot.audits
    pilot.audits.extend([0.3, 0.35] * 5)
    pilot.evidence = Evidence()  # whose kept loss is high on points
    pilot._decide(STEPS, size)
    assert pilot.option == PLAIN
    pilot._decide(STEPS + 50, size)  # and not taken up again by what is old
    assert pilot.option == PLAIN


@pytest.mark.parametrize("known", [True, False])
def test_of_samples_that_come_again_nothing_is_learned_but_kept_loss(known: bool) -> None:
    data = Points(2 * BATCH)
    loader: Any = DataLoader(data, BATCH)
    if not known:  # whatever has no indices may come again
        loader = [(data.x[:BATCH], data.y[:BATCH]), (data.x[BATCH:], data.y[BATCH:])]
    model = make_model()
    sifter = Sifter(model)
    assert sifter.pilot is not None
    sifter.pilot.pacing.cost = 0.01
    for _ in train(model, sifter(loader)):
        pass
    assert sifter.pilot.evidence.counts["input"] >= 50
    assert all(
        mean.count == 0 for window in sifter.pilot.arrivals.windows.values() for mean in window
    )
    judged = sifter.pilot.judge()
    assert all(one.share is None for one in judged)
    assert all(one.kept_loss is not None for one in judged if one.option.scorer == "input")
    for decision in sifter.pilot.decisions:
        assert decision.option == PLAIN or "of the loss" in decision.why


def test_what_memory_chooses_is_not_read_beyond_it(monkeypatch: pytest.MonkeyPatch) -> None:
    model, data = make_model(), Points()
    sifter = Sifter(model, audit_every=0)
    pilot = sifter.pilot
    assert pilot is not None
    for _ in train(model, sifter(DataLoader(data, BATCH, shuffle=True)), steps=60):
        pass
    seen = sifter.stats().candidates_seen
    pilot.decision = replace(pilot.decision, option=Option("memory", 4))
    pilot.exit.active = "memory"
    read: list[int] = []
    get = Points.__getitem__

    def reading(self: Points, index: int) -> tuple[Tensor, Tensor]:
        read.append(index)
        return get(self, index)

    monkeypatch.setattr(Points, "__getitem__", reading)
    for _ in train(model, sifter(DataLoader(data, BATCH, shuffle=True)), steps=5):
        pass
    assert sifter.stats().candidates_seen - seen == 5 * 4 * BATCH
    assert len(read) == 5 * BATCH


def test_a_language_model_is_rehearsed_at_a_block_of_its_stack() -> None:
    config = hf.GPT2Config(n_layer=3, n_embd=16, n_head=2, vocab_size=50, n_positions=16)
    model = hf.GPT2LMHeadModel(config)
    rows = torch.randint(0, 50, (64, 12))
    data = [{"input_ids": row, "labels": row} for row in rows]
    sifter = Sifter(model)
    for batch in sifter(DataLoader(data, 8)):
        model(**batch).loss.backward()
    assert sifter.pilot is not None
    assert sifter.pilot.exit.looks == "tuned"
    assert "at every position" in sifter.pilot.exit.refused["input"]
    assert 0 < sifter.pilot.exit.costs["tuned"] < 0.5
    assert sifter.stats().rehearsals == 4


def test_batches_that_no_scorer_fits_are_trained_as_they_are() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return (x * self.weight).sum(dim=1)

    model = Odd()
    batches = [torch.randn(4, 4) for _ in range(60)]
    sifter = Sifter(model, losses=lambda model, batch: model(batch) ** 2)
    for batch in sifter(batches):
        (model(batch) ** 2).mean().backward()
    assert sifter.stats().steps == 60


def test_held_out_samples_that_share_a_generator_with_the_loader_change_no_batch() -> None:
    """One generator for all loaders is how a run is made reproducible; what is held out is read alike again."""
    given, read = [], []
    for looks in (False, True, True):
        shared = torch.Generator().manual_seed(1)
        data = Points()
        loader = DataLoader(data, BATCH, shuffle=True, generator=shared)
        own = DataLoader(TensorDataset(*draw(300, 4)), 50, shuffle=True, generator=shared)
        if read:  # as after a resume, when it has drawn more
            own.generator.manual_seed(2)
        model = make_model()
        trial = Trial(held_out=own, updates=STEPS) if looks else None
        sifter = looking(Sifter(model, trial=trial), 20)
        given.append([x for x, _ in train(model, sifter(loader), steps=80)])
        if looks:
            assert sifter.pilot is not None
            read.append(sifter.pilot.held_out._batches)
    assert all(torch.equal(a, b) for a, b in zip(given[0], given[1], strict=True))
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(*read, strict=True))


def test_held_out_without_a_batch_is_refused() -> None:
    model = make_model()
    sifter = Sifter(model, trial=Trial(held_out=iter([]), updates=100))
    with pytest.raises(ValueError, match="holds no batch"):
        for _ in train(model, sifter(DataLoader(Points(), BATCH)), steps=3):
            pass


def test_a_state_of_another_model_is_refused() -> None:
    model = make_model()
    data = DataLoader(Points(), BATCH)
    sifter = looking(Sifter(model, trial=Trial(held_out=held_out(), updates=100)), 10)
    for _ in train(model, sifter(data), steps=20):
        pass
    state = sifter.state_dict()
    other = nn.Sequential(nn.Linear(8, 7), nn.ReLU(), nn.Linear(7, 3))
    again = looking(Sifter(other, trial=Trial(held_out=held_out(), updates=100)), 10)
    with pytest.raises(ValueError, match="averaged weights do not fit"):
        again.load_state_dict(state)


def test_without_an_exit_and_a_ratio_the_pilot_decides_and_with_one_there_is_none() -> None:
    pilot = Sifter(make_model()).pilot
    assert isinstance(pilot, Pilot)
    assert pilot(0) == 1.0, "everything is trained at first"
    assert "everything" in pilot.summary()["option"]
    assert Sifter(make_model(), exit="input", keep=0.5).pilot is None


def test_with_a_given_cost_no_clock_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two runs of one seed are alike then, whatever else the machine does."""
    found = []
    for speed in (1.0, 50.0):
        ticks = iter(range(10**9))
        monkeypatch.setattr(
            "sifting.autopilot.pilot.now", lambda ticks=ticks, s=speed: s * next(ticks)
        )
        model = make_model()
        trial = Trial(held_out=held_out(), updates=STEPS, cost=0.01)
        sifter = Sifter(model, trial=trial)
        assert sifter.pilot is not None
        sifter.pilot.held_out.plan_with = lambda size, there: LookPlan((40, 80), there)
        for _ in train(model, sifter(DataLoader(Points(), BATCH, shuffle=True))):
            pass
        assert sifter.pilot.pacing.cost == 0.01
        again = Sifter(make_model(), trial=Trial(cost=0.02))
        again.load_state_dict(sifter.state_dict())
        assert again.pilot is not None
        assert again.pilot.pacing.cost == 0.02
        found.append((fingerprint(model), sifter.pilot.decisions))
    assert found[0][1]
    assert found[0][1] == found[1][1]
    assert all(torch.equal(a, b) for a, b in zip(found[0][0], found[1][0], strict=True))


@pytest.mark.parametrize("cost", [0.5, 0.01])
def test_where_choosing_cannot_pay_nothing_is_read_of_the_users_forward(cost: float) -> None:
    model = make_model()
    sifter = Sifter(model, trial=Trial(held_out=held_out(), updates=STEPS, cost=cost))
    list(train(model, sifter(DataLoader(Points(), BATCH, shuffle=True))))
    read = sifter.stats().losses_read
    assert read == (0 if cost > 0.35 else sifter.step)
    assert ("of the time of training it" in sifter.stats().why) == (cost > 0.35)


def test_what_it_does_beside_the_users_step_has_a_clock_of_its_own() -> None:
    model = make_model()
    sifter = Sifter(model, trial=Trial(updates=STEPS, cost=0.01))
    list(train(model, sifter(DataLoader(Points(), BATCH, shuffle=True))))
    assert 0 < sifter.stats().seconds_observing < sifter.stats().seconds_between
    plain = Sifter(model, keep=1.0)
    list(train(model, plain(DataLoader(Points(), BATCH, shuffle=True))))
    assert plain.stats().seconds_observing == 0


def test_what_is_timed_is_the_scorer_that_takes_longest() -> None:
    model = make_model()
    sifter = Sifter(model)
    sifter.rehearse()
    list(train(model, sifter(DataLoader(Points(), BATCH, shuffle=True))))
    assert sifter.exit.active == "predicted"
    assert sifter.stats().selections > 0
