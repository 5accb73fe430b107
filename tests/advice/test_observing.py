"""Advice along a plain run: it never selects, and tells a task where selection pays from one where not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from sifting.advice.observing import advise
from sifting.autopilot.pacing import Pacing
from sifting.training.assemble import assemble
from sifting.training.config import RunConfig
from sifting.training.problem import Problem
from sifting.training.run_folder import RunError
from tests.helpers import problems


@pytest.fixture(autouse=True)
def _cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models this small take less time than scoring does: have it cost nothing."""
    monkeypatch.setattr(Pacing, "timed", lambda self, seconds, step_seconds: None)


def build(*, noisy: bool = False) -> Problem:
    """Two classes; few samples are ambiguous, and what is learned is learned there. Or noise."""
    torch.manual_seed(0)
    x = torch.randn(1600, 16)
    far = torch.rand(1600) > 0.2
    x[far, 0] += 6 * x[far, 0].sign()
    y = torch.randint(2, (1600,)) if noisy else (x[:, 0] + 0.5 * x[:, 1] > 0).long()
    data = TensorDataset(x[:1200], y[:1200])
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 2))

    def evaluate(model: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            return {"accuracy": float((model(x[1200:]).argmax(1) == y[1200:]).float().mean())}

    return Problem(
        model=model,
        batches=lambda: DataLoader(data, batch_size=16, shuffle=True),
        loss=lambda model, batch: F.cross_entropy(model(batch[0]), batch[1]),
        evaluate=evaluate,
        optimizer=torch.optim.AdamW(model.parameters(), lr=3e-3),
        batch=16,
        held_out=lambda: [(x[1200:], y[1200:])],
    )


def test_nothing_is_selected_and_the_plain_run_is_what_it_would_have_been() -> None:
    problem, plain = build(), build()
    records: list[Any] = []
    torch.manual_seed(1)
    advice = advise(problem, updates=60, effort=2.0, watch=records.append)
    assert records[-1]["candidates_seen"] == records[-1]["samples_trained"]
    assert advice.seen == 60
    assert advice.phases[-1].batch <= 60
    assert advice.metrics["accuracy"] > 0.6
    torch.manual_seed(1)
    loader, done = plain.batches(), 0
    while done < 60:
        for batch in loader:
            plain.loss(plain.model, batch).backward()
            plain.optimizer.step()
            plain.optimizer.zero_grad()
            done += 1
            if done == 60:
                break
    for mine, theirs in zip(problem.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_what_is_learned_on_the_ambiguous_pays_and_noise_does_not() -> None:
    clean, noise = (advise(build(noisy=noisy), updates=160, effort=1.0) for noisy in (False, True))
    assert clean.settings["input", 2].value > 0
    assert not noise.pays
    assert noise.planned == 160


def test_what_it_spends_on_measuring_and_what_hangs_on_its_samples_are_told() -> None:
    advice = advise(build(), updates=1200, part=0.2)
    assert 0 < advice.overhead <= 0.012, "looks may take 1.2 % of a run"
    assert advice.chance is not None
    assert all(len(phase.others) == 16 for phase in advice.phases)
    short = advise(build(), updates=160, effort=1.0)
    assert short.overhead == 0, "at work it could not afford to look"
    assert advise(replace(build(), held_out=None), updates=60).chance is None


def test_a_part_of_the_run_will_do_and_is_said() -> None:
    advice = advise(build(), updates=100, part=0.3)
    assert advice.seen == 31
    assert advice.phases[-1].batch == 25
    assert any("at 30%" in note for note in advice.notes)
    assert not advice.metrics


def test_without_held_out_samples_it_says_what_it_cannot_tell() -> None:
    problem = replace(build(), held_out=None)
    advice = advise(problem, updates=60)
    assert any("held_out=" in note for note in advice.notes)
    assert all(row.share is None for phase in advice.phases for row in phase.rows)


def test_held_out_samples_that_are_not_looked_at_are_said_with_the_reason() -> None:
    few = [(x[:20], y[:20]) for x, y in list(build().held_out())[:1]]  # type: ignore[misc]
    advice = advise(replace(build(), held_out=lambda: few), updates=60)
    assert "not looked at: it has 20 samples, and 100 or more tell something" in " ".join(
        advice.notes
    )
    assert str(advice).endswith(advice.sentence)
    with pytest.raises(TypeError, match="held_out is a list: give a function that returns it"):
        replace(build(), held_out=few)


def test_a_problem_that_was_used_up_is_said() -> None:
    problem = build()
    assert not any("new Problem" in note for note in advise(problem, updates=20).notes)
    assert any("new Problem" in note for note in advise(problem, updates=20).notes)


def test_batches_of_any_size_are_read_at_the_trained_one() -> None:
    advice = advise(problems.build(0), updates=60)
    assert advice.seen == 60


@pytest.mark.parametrize(
    ("wrong", "named"),
    [({"updates": 0}, "updates=0"), ({"part": 1.5}, "part=1.5"), ({"effort": 0}, "effort=0")],
)
def test_wrong_arguments_are_named(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        advise(build(), **{"updates": 100, **wrong})


def test_it_begins_with_the_checkpoint_of_a_run(tmp_path: Path) -> None:
    torch.manual_seed(1)
    config = RunConfig(arm="baseline", evaluations=4)
    run = assemble("problem", config, build(), tmp_path / "run", updates=120)
    run.advance(60)
    run.save()
    weights = [parameter.clone() for parameter in run.task.model.parameters()]
    run.finish()
    problem = build()
    met: list[Any] = []
    loss = problem.loss

    def first(model: nn.Module, batch: Any) -> torch.Tensor:
        if not met:
            met.extend(parameter.detach().clone() for parameter in model.parameters())
        return loss(model, batch)

    advice = advise(replace(problem, loss=first), updates=120, effort=2.0, start=tmp_path / "run")
    assert all(torch.equal(a, b) for a, b in zip(met, weights, strict=True))
    assert advice.updates == advice.seen == 60
    assert any("begun at update 60" in note for note in advice.notes)


def test_a_run_that_is_over_or_of_another_model_is_no_beginning(tmp_path: Path) -> None:
    run = assemble("problem", RunConfig(arm="baseline"), build(), tmp_path / "run", updates=8)
    run.run()
    with pytest.raises(ValueError, match="has made 8 updates, and 8 are planned"):
        advise(build(), updates=8, start=tmp_path / "run")
    other = nn.Linear(16, 2)
    problem = replace(build(), model=other, optimizer=torch.optim.AdamW(other.parameters()))
    with pytest.raises(RunError, match="no run can start from the checkpoint"):
        advise(problem, updates=16, start=tmp_path / "run")
    with pytest.raises(RunError, match="not a run folder"):
        advise(build(), updates=16, start=tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"problem": build}, "give a sifting.training.Problem"),
        ({"config": 3}, "config=3: give a sifting.training.RunConfig"),
    ],
)
def test_what_is_no_problem_or_config_is_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises(TypeError, match=named):
        advise(**{"problem": build(), "updates": 8, **given})


@pytest.mark.parametrize("given", [{"part": "x"}, {"effort": None}])
def test_shares_that_are_no_numbers_are_named(given: dict[str, Any]) -> None:
    (name,) = given
    with pytest.raises(ValueError, match=f"{name}={given[name]!r} is not in"):
        advise(build(), updates=8, **given)


def test_a_run_folder_may_be_given_as_text(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="not a run folder"):
        advise(build(), updates=8, start=str(tmp_path / "nowhere"))


def test_where_choosing_takes_too_long_the_rest_of_the_run_is_not_trained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def timed(self: Pacing, seconds: float, step_seconds: float) -> bool:
        self.count += 1
        self.cost = 0.5 if self.count == 4 else None
        return self.cost is not None

    monkeypatch.setattr(Pacing, "timed", timed)
    advice = advise(build(), updates=2000, part=0.5)
    assert advice.seen < 100
    assert not advice.pays
    assert "Leave it off: scoring a batch takes" in advice.sentence
    assert advice.notes == (
        f"left after {advice.seen} of 2000 updates: nothing that the rest could show would make choosing pay",
    )
    assert not advice.metrics
