"""A problem, an arm and a config become an engine with a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from sifting.training.arms import ARMS
from sifting.training.assemble import (
    assemble,
    check_new,
    find_checkpoint,
    loss_of,
    make_pace,
    make_sifter,
    run_settings,
    selector_settings,
)
from sifting.training.config import RunConfig
from sifting.training.run_folder import RunError, read_run
from tests.helpers.problems import build

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")


def test_the_record_has_what_a_report_needs() -> None:
    config, problem = RunConfig(arm="sift", seed=3), build(3)
    sifter = make_sifter(config, problem, 100, None)
    found = run_settings("mine", config, problem, sifter)
    assert (found["recipe"], found["arm"], found["seed"]) == ("mine", "sift", 3)
    assert (found["metric"], found["lower_is_better"]) == ("accuracy", False)
    assert found["selector"]["keep"] == 0.5
    plain = make_sifter(RunConfig(), build(0), 100, None)
    assert selector_settings(plain) is None, "the baseline selects nothing"


def test_shares_of_the_run_become_steps_of_the_sifter() -> None:
    config = RunConfig(arm="sift", warmup=0.1, accumulate=2)
    sifter = make_sifter(config, build(0), 100, None)
    assert sifter.schedule.warmup_steps == 20
    assert sifter.draws == "batch", "since its loader is a function of the size"
    assert sifter.auditor.every == config.audit_every
    auto = make_sifter(RunConfig(arm="auto"), build(0), 100, None)
    assert auto.draws == "samples"
    assert auto.auditor.every == 4 * config.audit_every


def test_what_an_arm_needs_of_the_problem_is_named() -> None:
    reference = next(name for name, arm in ARMS.items() if arm.held_out)
    with pytest.raises(ValueError, match=f"arm '{reference}' .* give the Problem held_out="):
        make_sifter(RunConfig(arm=reference), build(0), 10, None)


def test_an_arm_without_weights_trains_the_problems_own_loss() -> None:
    config, problem = RunConfig(arm="sift"), build(0)
    assert loss_of(config, problem, make_sifter(config, problem, 10, None)) is problem.loss


@pytest.mark.parametrize(
    ("given", "every", "seconds"),
    [
        ({}, 25, None),
        ({"checkpoint_every": "7u"}, 7, None),
        ({"checkpoint_every": "10m"}, 100, 600.0),
    ],
)
def test_a_pace_evaluates_so_many_times_and_saves_as_asked(
    given: dict[str, str], every: int, seconds: float | None
) -> None:
    pace = make_pace(RunConfig(evaluations=4, **given), 100)
    assert (pace.evaluate_every, pace.log_every) == (25, 5)
    assert (pace.checkpoint_every, pace.checkpoint_seconds) == (every, seconds)


def test_a_run_is_made_once_and_gone_on_with_from_its_checkpoint(tmp_path: Path) -> None:
    config, out = RunConfig(arm="sift", evaluations=2, batch=16), tmp_path / "run"
    engine = assemble(
        "mine", config, build(0), out, updates=8, extra={"budget": {"kind": "updates"}}
    )
    assert read_run(out).config["budget"] == {"kind": "updates"}
    assert read_run(out).config["updates"] == 8
    with pytest.raises(RunError, match="holds a run already"):
        check_new(out)
    engine.advance(4)
    assert find_checkpoint(out).step == 4
    again = assemble(
        "mine", config, build(0), out, updates=8, resume=True, extra={"budget": {"kind": "updates"}}
    )
    assert again.update == 4
    for one, other in zip(
        engine.task.model.parameters(), again.task.model.parameters(), strict=True
    ):
        assert torch.equal(one, other)


def test_a_run_begins_with_the_weights_of_another(tmp_path: Path) -> None:
    config = RunConfig(evaluations=2, batch=16)
    first = assemble("mine", config, build(0), tmp_path / "first", updates=8)
    with pytest.raises(ValueError, match="has no checkpoint to start from"):
        assemble("mine", config, build(1), tmp_path / "b", updates=8, start=tmp_path / "first")
    first.advance(4)
    sifted = replace(config, arm="sift")
    other = assemble(
        "mine", sifted, build(1), tmp_path / "second", updates=8, start=tmp_path / "first"
    )
    assert (other.update, other.sifter.step) == (4, 0)
    with pytest.raises(ValueError, match="has made 4 updates, and 4 are planned"):
        assemble("mine", config, build(1), tmp_path / "c", updates=4, start=tmp_path / "first")
