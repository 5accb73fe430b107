from __future__ import annotations

import io
import json
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console

from sifting.cli import main as sift
from sifting.compare.live import Board
from sifting.compare.turns import PlannedRun
from sifting.measure.clocks import OPERATIONS
from sifting.recipes import resnet
from sifting.training.locks import locked
from sifting.training.recipe import train
from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder
from tests.helpers import problems
from tests.helpers.processes import Started

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")

OWN = "tests.helpers.problems:build"
FAST = ["--evaluations", "4", "--audit-every", "5"]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sifting.compare.calibration.MOST", 2)
    monkeypatch.setattr("sifting.compare.calibration.FEWEST", 2)
    monkeypatch.setattr("sifting.compare.calibration.FIRST", 1)


def run(out: Path, *options: str, workload: str = OWN, budget: str = "24u") -> int:
    where = ["--out", str(out), "--budget", budget, "--keep-finished"]
    return sift.main(["compare", *workload.split(), *where, *FAST, *options])


def weights(path: Path) -> dict[str, Any]:
    folder = RunFolder(path)
    step = folder.checkpoints.latest()
    assert step is not None
    return folder.checkpoints.load(step)["model"]


def same(one: Path, other: Path) -> bool:
    a, b = weights(one), weights(other)
    return all(torch.equal(a[name], b[name]) for name in a)


def figures(path: Path) -> list[Any]:
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "load")}
        for line in read_run(path).metrics
    ]


def manifest(out: Path) -> Any:
    return json.loads((out / "comparison.json").read_text())


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


def test_runs_in_turns_equal_runs_of_their_own(tmp_path: Path) -> None:
    own = {"evaluations": 2, "audit_every": 3, "batch": 20, "side": 8, "seed": 3}
    options = ["--evaluations", "2", "--audit-every", "3", "--batch", "20", "--side", "8"]
    options += ["--arms", "tuned", "--no-control", "--seeds", "3", "--turn", "3"]
    assert run(tmp_path / "all", *options, workload="resnet smoke", budget="8u") == 0
    for arm in ("baseline", "tuned"):
        config = replace(resnet.PRESETS["smoke"], arm=arm, updates=8, **own)
        train(resnet.RECIPE, config, tmp_path / arm)
        cell = tmp_path / "all" / arm / "seed-3"
        assert same(cell, tmp_path / arm), arm
        alone = [{k: v for k, v in f.items() if k != "reference"} for f in figures(cell)]
        assert alone == figures(tmp_path / arm)


def test_one_after_the_other_ends_like_in_turns(tmp_path: Path) -> None:
    options = ["--arms", "tuned", "--seeds", "0", "--no-control"]
    assert run(tmp_path / "turns", *options, "--turn", "2") == 0
    assert run(tmp_path / "rows", *options, "--sequential") == 0
    for arm in ("baseline", "tuned"):
        assert same(tmp_path / "turns" / arm / "seed-0", tmp_path / "rows" / arm / "seed-0")


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


def test_an_arm_that_diverges_in_the_calibration_costs_that_arm_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--arms", "sift", "--seeds", "0", "--no-control"]
    assert run(tmp_path / "arm", *options, "--set", "sift:blow=1") == 0
    shown = capsys.readouterr().out
    assert "arm 'sift' diverged while it was measured, and will in its runs" in shown
    assert read_run(tmp_path / "arm" / "sift" / "seed-0").status == "failed"
    assert read_run(tmp_path / "arm" / "baseline" / "seed-0").status == "finished"
    assert run(tmp_path / "all", *options, "--set", "baseline:blow=1") == 2
    assert "arm 'baseline' cannot be trained: its loss is not finite" in capsys.readouterr().err
    assert not (tmp_path / "all").exists()


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


def test_the_board_shows_a_line_for_each_arm(tmp_path: Path) -> None:
    table = {"forward": 1.0}
    cells = [
        PlannedRun(replace(resnet.PRESETS["smoke"], arm=arm), tmp_path / arm, 10, 20.0, {}, table)
        for arm in ("baseline", "sift")
    ]
    screen = io.StringIO()
    board = Board(Console(file=screen, force_terminal=True, width=100, no_color=True), cells)
    with board.shown():
        for cell in cells:
            record = {"step": 5, "seconds": {"scoring": 1.0, "forward": 3.0}, "metric": "accuracy"}
            board.watch(cell, {**record, "loss": 2.0, "selection": {"rho_approx": 1.25}})
            board.watch(cell, {**record, "accuracy": 0.5})
        board.ended(cells[0], "finished")
        board.ended(cells[1], "failed")
    lines = [line.split() for line in screen.getvalue().splitlines()]
    assert ["baseline", "0", "5/10", "2.000", "50.00%", "1.25", "25%"] in lines
    assert "sift, seed 0: diverged, accuracy 0.5000; 2 of 2 runs, left 0:00" in screen.getvalue()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["alexnet"], "workload='alexnet' is unknown: choose a recipe (bert, gpt, resnet)"),
        (["no_such_module:build"], "'no_such_module' cannot be imported"),
        (["tests.helpers.problems:absent"], "is not there"),
        (["tests.helpers.problems:number"], "is a int, and must be a function or a Recipe"),
        (
            ["tests.helpers.problems:nothing"],
            "returned a str, not a sifting Problem",
        ),
        (["tests.helpers.problems:broken"], "raised KeyError: 'weights'"),
        (["tests.helpers.problems:misnamed"], "must be a dict with a number under 'f1'"),
        (
            ["tests.helpers.problems:unwritable"],
            "evaluate gave share=tensor(0.2500), a Tensor, which",
        ),
        (["resnet", "huge"], "resnet has no preset 'huge'; it has: paper, small, smoke"),
        ([OWN, "smoke"], "has no preset 'smoke'"),
        ([OWN, "--arms", "sieve"], "arm='sieve' is unknown"),
        ([OWN, "--arms", "sift", "sift"], "give each once"),
        ([OWN, "--arms", "tests.helpers.problems:absent"], "cannot be imported"),
        ([OWN, "--arms", "tests.helpers.problems:number"], "is a int"),
        (
            [OWN, "--arms", "tests.helpers.problems:headless"],
            "headless' cannot be",
        ),
        ([OWN, "--seeds", "1", "1"], "give at least one, each once"),
        ([OWN, "--budget", "soon"], "budget='soon' is not understood"),
        ([OWN, "--budget", "3u"], "fewer than its 4 evaluations"),
        ([OWN, "--budget", "5n"], "not enough for one update"),
        ([OWN, "--budget", "0.000001s"], "not enough for one update of arm 'baseline'"),
        ([OWN, "--set", "sift:lr"], "write ARM:key=value"),
        ([OWN, "--set", "sieve:lr=1"], "without 'sieve'"),
        ([OWN, "--set", "clop=1"], "raised TypeError"),
        (["resnet", "smoke", "--set", "clop=1"], "there is no such setting"),
        (["resnet", "smoke", "--set", "max_lr=high"], "give a float, like 0.01"),
        ([OWN, "--seed", "3"], "--seed is for single runs: here it is --seeds"),
        ([OWN, "--batch", "3"], "here it is the Problem's own batch"),
        ([OWN, "--turn", "0"], "turn=0"),
        (["resnet"], "name a preset after `sift compare resnet`: paper, small, smoke"),
        ([OWN, "--total", "2h"], "one of them"),
        ([OWN, "--budget", "total:9u"], "give the time of all runs together, e.g. 2h"),
        (["tests.helpers.problems:convolutional"], "or leave it out: --arms default finds a place"),
        (["tests.helpers.problems:deaf"], "batches(32) gave 16 samples in its first batch"),
        (["resnet", "smoke", "--data", "/no/such/data"], "cannot read images from"),
    ],
)
def test_mistakes_are_named_before_anything_runs(
    argv: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    rest = ["--budget", "8u"] if "--budget" not in argv else []
    arms = ["--arms", "sift"] if "--arms" not in argv else []
    command = [*argv[:1], *argv[1:], *arms, *rest, "--evaluations", "4", "--out", str(out)]
    assert sift.main(["compare", *command]) == 2
    assert message in capsys.readouterr().err
    assert not list(out.glob("*/seed-*"))


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


def test_a_regression_is_compared_by_the_default_arm(tmp_path: Path) -> None:
    """It has no classes, so the default is to score by loss, and not an error about logits."""
    command = "compare tests.helpers.problems:regression --arms default --seeds 0 --budget 8u"
    out = tmp_path / "out"
    assert sift.main([*command.split(), "--evaluations", "4", "--out", str(out)]) == 0
    assert read_run(out / "default" / "seed-0").config["selector"]["score"] == "default"


def test_a_folder_that_cannot_be_used_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert run(tmp_path / "file" / "out") == 2
    assert "cannot write a comparison to" in capsys.readouterr().err
    (tmp_path / "comparison.json").write_text("{")
    assert run(tmp_path) == 2
    assert "comparison.json is damaged" in capsys.readouterr().err
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run(tmp_path / "other") == 2
    assert "runs in one process" in capsys.readouterr().err
    assert sift.main(["compare"]) == 2
    assert "usage: sift compare" in capsys.readouterr().err


TWO = ["--arms", "tuned", "--no-control", "--seeds", "0", "1", "--turn", "2"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("whole")
    assert run(out, *TWO) == 0
    return out


def assert_ends_alike(whole: Path, out: Path) -> None:
    assert run(out, *TWO) == 0
    for arm in ("baseline", "tuned"):
        for seed in ("seed-0", "seed-1"):
            assert read_run(out / arm / seed).status == "finished"
            assert same(whole / arm / seed, out / arm / seed)
            assert figures(whole / arm / seed) == figures(out / arm / seed)


def test_a_killed_comparison_ends_like_one_that_is_not(whole: Path, tmp_path: Path) -> None:
    # the table of the other, since what is charged goes into the log
    (tmp_path / "comparison.json").write_text((whole / "comparison.json").read_text())
    command = ["compare", OWN, "--out", str(tmp_path), "--budget", "24u", "--keep-finished"]
    command += [*FAST, *TWO]
    process = Started(["-m", "sifting.cli.main", *command], env={"COMPARE_PAUSE": "0.3"})
    deadline = time.monotonic() + 60
    while (RunFolder(tmp_path / "tuned" / "seed-0").checkpoints.latest() or 0) < 6:
        assert time.monotonic() < deadline, "no checkpoint within a minute"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    assert process.wait().returncode == -signal.SIGKILL
    assert read_run(tmp_path / "tuned" / "seed-0").status == "running"
    assert not (tmp_path / "tuned" / "seed-1").exists()
    assert_ends_alike(whole, tmp_path)


@pytest.mark.parametrize(
    ("number", "at", "steps"),
    [
        (signal.SIGINT, 9, {"baseline": 10, "tuned": 10}),  # in the middle of a turn
        (signal.SIGTERM, 8, {"baseline": 6, "tuned": 8}),  # at its end
    ],
    ids=["SIGINT", "SIGTERM"],
)
def test_a_comparison_that_is_asked_to_stop_saves_all_and_ends_like_one_that_is_not(
    number: signal.Signals,
    at: int,
    steps: dict[str, int],
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "comparison.json").write_text((whole / "comparison.json").read_text())

    def watch(board: Board, run: PlannedRun, record: Any) -> None:
        if run.config.arm == "tuned" and record["step"] == at:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Board, "watch", watch)
        assert run(tmp_path, *TWO) == 128 + number
    assert f"stopped by {number.name}; the same command goes on" in capsys.readouterr().err
    for arm, step in steps.items():
        stopped = read_run(tmp_path / arm / "seed-0")
        assert (stopped.status, stopped.summary["stopped_by"]) == ("stopped", number.name)
        assert RunFolder(tmp_path / arm / "seed-0").checkpoints.latest() == step
    assert_ends_alike(whole, tmp_path)


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
