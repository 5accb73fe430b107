"""What operations cost, measured before a comparison."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sifting.bench.registry import tasks, workload_of
from sifting.compare.calibration import ArmError, Calibration, Rehearsal, calibrate
from sifting.compare.harness import arm_configs
from sifting.compare.workload import FunctionWorkload, OwnConfig, RecipeWorkload
from sifting.training.run_folder import read_run
from tests.helpers import problems
from tests.helpers.comparisons import OWN, manifest, measure_briefly, run

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_briefly(monkeypatch)


def test_an_arm_that_diverges_in_the_calibration_costs_that_arm_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--arms", "sift", "--seeds", "0", "--no-control"]
    assert run(tmp_path / "arm", *options, "--set", "sift:blow=1") == 0
    shown = capsys.readouterr().out
    assert (
        "arm 'sift' diverged while it was measured, and is expected to diverge in its runs" in shown
    )
    assert read_run(tmp_path / "arm" / "sift" / "seed-0").status == "failed"
    assert read_run(tmp_path / "arm" / "baseline" / "seed-0").status == "finished"
    assert run(tmp_path / "all", *options, "--set", "baseline:blow=1") == 2
    assert "arm 'baseline' cannot be trained: its loss is not finite" in capsys.readouterr().err
    assert not (tmp_path / "all").exists()


def test_a_table_by_the_time_that_is_computed_is_gone_on_with_by_the_same_clock(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(tmp_path, "--clock", "cpu", "--arms", "sift", "--seeds", "0") == 0
    (measured,) = manifest(tmp_path)["calibrations"]
    assert measured["clock"] == "cpu"
    assert run(tmp_path, "--arms", "sift", "--seeds", "0") == 2
    assert "made by clock='cpu', not 'wall'" in capsys.readouterr().err
    monkeypatch.setattr("torch.get_num_threads", lambda: 2)
    assert run(tmp_path / "two", "--clock", "cpu") == 2
    assert "clock='cpu' on 2 threads" in capsys.readouterr().err


def measured(*arms: str, **options: Any) -> Calibration:
    workload = FunctionWorkload(OWN, problems.build)
    return calibrate(workload, {arm: OwnConfig(arm=arm) for arm in arms}, **options)


def test_operations_are_timed_for_each_arm_and_the_same_work_has_one_price() -> None:
    found = measured("baseline", "sift")
    assert set(found.tables) == {"baseline", "sift"}
    for name in ("forward", "backward", "optimizer"):
        assert found.tables["baseline"][name] == found.tables["sift"][name] > 0
    assert found.tables["baseline"]["scoring"] == 0 < found.tables["sift"]["scoring"]
    assert found.tables["sift"]["auditing"] > 0, "though audits are seldom in the run"
    assert (found.rounds, found.batches) == (2, {"baseline": 16, "sift": 16})
    assert found.work["sift"].audit_every == OwnConfig().audit_every
    assert found.evaluation > 0
    assert found.checkpoint_bytes > 0
    assert not found.constant_lr


def test_one_after_the_other_needs_one_model_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def noting(trials: dict[str, Rehearsal], limit: float) -> None:
        seen.append(list(trials))
        for trial in trials.values():
            trial.step(keep=True)
            trial.step(keep=True)

    monkeypatch.setattr("sifting.compare.calibration._measure", noting)
    measured("baseline", "sift", together=False)
    assert seen == [["baseline"], ["sift"]]


def test_an_arm_that_cannot_be_trained_is_named_with_the_reason() -> None:
    with pytest.raises(ArmError, match="arm 'sift@9' cannot be trained") as caught:
        measured("baseline", "sift@9")
    assert caught.value.arm == "sift@9"
    assert caught.value.why in str(caught.value)


def test_what_an_arm_reads_of_its_forward_is_its_own_cost_and_no_forward() -> None:
    workload = workload_of(tasks()["digits"])
    assert isinstance(workload, RecipeWorkload)
    arms = ("baseline", "memory", "input-entropy", "auto")
    configs = arm_configs(workload, workload.presets["smoke"], arms, [], control=False)
    found = calibrate(workload, configs)
    prices = {arm: table["observing"] for arm, table in found.tables.items()}
    assert prices["baseline"] == 0
    assert all(prices[arm] > 0 for arm in ("memory", "auto"))
    assert found.tables["memory"]["forward"] == found.tables["baseline"]["forward"]
    listens = {arm: work.listens for arm, work in found.work.items()}
    assert listens == {"baseline": "", "memory": "step", "input-entropy": "selection", "auto": ""}
