from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from sifting.cli import main as sift
from sifting.compare.harness import Comparison, arm_configs
from sifting.compare.workload import FunctionWorkload, OwnConfig
from sifting.measure.clocks import OPERATIONS
from sifting.training.locks import locked
from sifting.training.run_folder import read_run
from tests.helpers import problems
from tests.helpers.comparisons import FAST, OWN, manifest, measure_briefly, run

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_briefly(monkeypatch)


def test_a_users_own_problem_and_selectors_from_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arms = ["sift", "tests.helpers.problems:half", "tests.helpers.problems:selector"]
    assert run(tmp_path, "--arms", *arms, "--seeds", "0", "1") == 0
    shown = capsys.readouterr().out
    found = manifest(tmp_path)
    assert list(found["arms"]) == ["baseline", "random", *arms]
    for arm, row in found["arms"].items():
        assert set(row["table"]) == set(OPERATIONS)
        assert all(row["table"][name] > 0 for name in ("data", "forward", "backward", "optimizer"))
        selects = arm != "baseline"
        assert (row["table"]["scoring"] > 0) == (row["table"]["auditing"] > 0) == selects
        assert row["updates"] == 24
        for seed in (0, 1):
            cell = read_run(tmp_path / row["folder"] / f"seed-{seed}")
            assert cell.status == "finished"
            assert cell.config["arm"] == arm
            assert (cell.config["seed"], cell.config["batch"]) == (seed, 16)
            assert cell.config["budget"] == {"kind": "updates", "amount": 24.0}
            assert cell.summary["sifting"]["samples_trained"] == 24 * 16
            assert cell.metrics[-1]["reference"]["forward"] == pytest.approx(
                24 * row["table"]["forward"], abs=1e-6
            )
            assert json.loads((cell.path / "reference.json").read_text()) == row["table"]
    forwards = {row["table"]["forward"] for row in found["arms"].values()}
    assert len(forwards) == 1  # the same work has one price
    assert found["calibrations"][0]["load"][0] >= 0
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    assert {arm["name"] for arm in verdict["arms"]} == set(found["arms"])
    assert verdict["overall"] in (tmp_path / "verdict.md").read_text()
    assert verdict["overall"] in shown
    assert "random, seed 1: finished" in shown


def one_cycle(updates: int) -> list[float]:
    """The learning rate after each update of a run of so many."""
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=updates)
    rates = [schedule.get_last_lr()[0]]
    for _ in range(updates):
        optimizer.step()
        schedule.step()
        rates += schedule.get_last_lr()
    return rates


def test_a_time_budget_is_spent_by_every_arm_and_its_schedule_ends_with_it(tmp_path: Path) -> None:
    options = ["--arms", "sift-last", "--seeds", "0", "--warmup", "0.1"]
    assert run(tmp_path, *options, budget="baseline:60u") == 0
    found = manifest(tmp_path)
    assert found["budget"]["kind"] == "seconds"
    assert found["arms"]["baseline"]["updates"] == 60
    for arm, row in found["arms"].items():
        assert row["seconds"] <= found["budget"]["amount"] * (1 + 1e-6)
        cell = read_run(tmp_path / arm / "seed-0")
        assert cell.summary["updates"] == row["updates"]
        train_lines = [line for line in cell.metrics if line["kind"] == "train"]
        # the schedule ends with the budget
        assert [train_lines[0]["lr"], train_lines[-1]["lr"]] == pytest.approx(
            [one_cycle(row["updates"])[train_lines[0]["step"]], one_cycle(row["updates"])[-1]]
        )
        spent = sum(cell.metrics[-1]["reference"].values())
        assert spent == pytest.approx(row["seconds"], rel=1e-3)


def test_samples_are_a_budget_too(tmp_path: Path) -> None:
    options = ["--arms", "sift", "--seeds", "0", "--accumulate", "2", "--no-control"]
    assert run(tmp_path, *options, budget="330n") == 0
    found = manifest(tmp_path)
    assert {arm: row["updates"] for arm, row in found["arms"].items()} == {
        "baseline": 10,
        "sift": 10,
    }
    assert read_run(tmp_path / "sift" / "seed-0").summary["sifting"]["samples_trained"] == 320


def test_an_arm_may_have_settings_of_its_own(tmp_path: Path) -> None:
    options = ["--seeds", "0", "--arms", "sift", "--set", "sift:lr=0.5", "--set", "clip=1.0"]
    assert run(tmp_path, *options) == 0
    configs = {arm: read_run(tmp_path / arm / "seed-0").config for arm in ("baseline", "sift")}
    assert [configs[arm]["options"] for arm in configs] == [{}, {"lr": 0.5}]
    assert [configs[arm]["clip"] for arm in configs] == [1.0, 1.0]
    lrs = {
        arm: max(line["lr"] for line in read_run(tmp_path / arm / "seed-0").metrics if "lr" in line)
        for arm in configs
    }
    assert lrs["baseline"] < 0.011
    assert lrs["sift"] > 0.1


def test_finished_cells_are_skipped_and_seeds_and_arms_may_be_added(tmp_path: Path) -> None:
    assert run(tmp_path, "--arms", "sift", "--seeds", "0") == 0
    first = manifest(tmp_path)
    times = {p: p.stat().st_mtime_ns for p in tmp_path.glob("*/seed-0/run.json")}
    assert len(times) == 3
    assert run(tmp_path, "--arms", "sift", "--seeds", "0", "1") == 0
    assert manifest(tmp_path) == first  # not measured again
    assert run(tmp_path, "--arms", "sift", "tuned", "--seeds", "0", "1") == 0
    added = manifest(tmp_path)
    assert {arm: added["arms"][arm] for arm in first["arms"]} == first["arms"]
    assert added["arms"]["tuned"]["table"]["forward"] == first["arms"]["sift"]["table"]["forward"]
    assert added["calibrations"][1]["arms"] == ["tuned"]
    assert {p: p.stat().st_mtime_ns for p in times} == times
    assert len(list(tmp_path.glob("*/seed-*/summary.json"))) == 8


def test_other_settings_are_refused_with_the_difference(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--arms", "sift", "--seeds", "0") == 0
    capsys.readouterr()
    assert run(tmp_path, "--arms", "sift", "--seeds", "0", "--clip", "2.0") == 2
    assert "sift: clip None → 2.0" in capsys.readouterr().err
    assert run(tmp_path, "--arms", "sift", "--seeds", "0", budget="48u") == 2
    assert "budget '24u' → '48u'" in capsys.readouterr().err


def test_an_arm_that_diverges_is_marked_and_the_rest_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # 3 calls in the calibration, so that it is the run that breaks
    options = ["--arms", "sift", "--seeds", "0", "--set", "sift:blow=12"]
    assert run(tmp_path, *options) == 0
    assert read_run(tmp_path / "sift" / "seed-0").status == "failed"
    assert read_run(tmp_path / "random" / "seed-0").status == "finished"
    shown = capsys.readouterr().out
    assert "sift, seed 0: diverged" in shown
    verdict = json.loads((tmp_path / "verdict.json").read_text())
    row = next(r for r in verdict["table"]["rows"] if r[0] == "sift")
    assert "–" in row[2]
    assert run(tmp_path, *options) == 0  # it would diverge again: it is left as it is
    assert "sift, seed 0" not in capsys.readouterr().out


def test_the_time_of_all_runs_may_be_given_and_is_told_beforehand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["compare", OWN, "--out", str(tmp_path), "--total", "4s", *FAST]
    command += ["--arms", "sift", "--seeds", "0", "1", "--no-control"]
    assert sift.main(command) == 0
    found = manifest(tmp_path)
    assert found["asked"] == "total:4s"
    runs = 2 * sum(row["seconds"] for row in found["arms"].values())
    assert 0.7 * 4 < runs + 2 * 2 * 4 * found["evaluation"] <= 4
    shown = capsys.readouterr().out
    assert "4 runs, about 0:04 in all by the table above, up to " in shown
    assert "GB of checkpoints at a time" in shown
    # of runs that have finished, nothing but the log is needed any more
    assert not list(tmp_path.glob("*/seed-*/checkpoints/*"))
    assert len(list(tmp_path.glob("*/seed-*/summary.json"))) == 4
    assert sift.main(command) == 0
    assert "all 4 runs are over" in capsys.readouterr().out


def test_a_second_comparison_in_a_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with locked(tmp_path):
        assert run(tmp_path, "--arms", "sift", "--seeds", "0") == 2
    assert f"is in use by process {os.getpid()} on " in capsys.readouterr().err


def test_names_are_shown_as_they_are_and_a_constant_learning_rate_is_remarked_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = "tests.helpers.problems:tent"  # ":tent:" would be an emoji
    monkeypatch.setattr(problems, "tent", problems.half, raising=False)
    options = ["--arms", arm, "--seeds", "0", "--no-control"]
    assert run(tmp_path, *options, workload="tests.helpers.problems:constant") == 0
    shown = capsys.readouterr().out
    assert f"{arm}, seed 0: finished" in shown
    assert arm in shown.rpartition("seed 0: finished")[2]  # in the verdict too
    assert "the learning rate is constant (the Problem has no schedule)" in shown


def test_without_a_baseline_that_converged_nothing_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--arms", "sift", "--seeds", "0", "--set", "baseline:blow=8", "--no-control"]
    assert run(tmp_path, *options) == 0
    assert json.loads((tmp_path / "verdict.json").read_text())["outcome"] == "cannot judge"
    assert "baseline, seed 0: diverged" in capsys.readouterr().out


@pytest.mark.parametrize(("named", "arm"), [("--arms default", "default"), ("", "tuned")])
def test_a_plain_cnn_is_compared(
    named: str, arm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the arms that nobody named, the one that has no place on this network is left out."""
    command = f"compare tests.helpers.problems:convolutional {named} --seeds 0 --budget 8u"
    out = tmp_path / "out"
    assert sift.main([*command.split(), "--evaluations", "4", "--out", str(out)]) == 0
    arms = {run.config["arm"] for run in map(read_run, out.glob("*/seed-0"))}
    assert arms == {"baseline", "random", arm}
    said = capsys.readouterr().out
    assert ("arm 'sift' is left out, since it cannot be trained here" in said) == (not named)


def test_the_baseline_and_the_control_are_always_among_the_arms() -> None:
    workload = FunctionWorkload(OWN, problems.build)
    found = arm_configs(workload, OwnConfig(), ["sift"], ["sift:clip=2.0"], control=True)
    assert list(found) == ["baseline", "random", "sift"]
    assert [config.clip for config in found.values()] == [None, None, 2.0]
    assert "random" not in arm_configs(workload, OwnConfig(), ["sift"], [], control=False)


def test_a_comparison_that_cannot_be_is_named(tmp_path: Path) -> None:
    workload = FunctionWorkload(OWN, problems.build)
    given = {"workload": workload, "out": tmp_path, "configs": {}, "seeds": (0,), "budget": "8u"}
    for wrong, message in (
        ({"seeds": ()}, "give at least one"),
        ({"seeds": (1, 1)}, "each once"),
        ({"block": 0}, "turn=0"),
        ({"budget": "soon"}, "is not understood"),
    ):
        with pytest.raises(ValueError, match=message):
            Comparison(**{**given, **wrong})


def test_a_regression_is_compared_by_the_default_arm(tmp_path: Path) -> None:
    """It has no classes, so the default is to score by loss, and not an error about logits."""
    command = "compare tests.helpers.problems:regression --arms default --seeds 0 --budget 8u"
    out = tmp_path / "out"
    assert sift.main([*command.split(), "--evaluations", "4", "--out", str(out)]) == 0
    assert read_run(out / "default" / "seed-0").config["selector"]["score"] == "default"
