"""Runs of a comparison in turns: each ends as a run of its own would."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sifting.compare.live import Board
from sifting.compare.turns import PlannedRun, TimeLeft
from sifting.recipes import resnet
from sifting.training.recipe import train
from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder
from tests.helpers.comparisons import FAST, OWN, measure_briefly, records, run, same
from tests.helpers.processes import Started
from tests.helpers.run_folders import made, write

pytestmark = pytest.mark.filterwarnings("ignore::sifting.SiftingWarning")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    measure_briefly(monkeypatch)


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
        alone = [{k: v for k, v in f.items() if k != "reference"} for f in records(cell)]
        assert alone == records(tmp_path / arm)


def test_one_after_the_other_ends_like_in_turns(tmp_path: Path) -> None:
    options = ["--arms", "tuned", "--seeds", "0", "--no-control"]
    assert run(tmp_path / "turns", *options, "--turn", "2") == 0
    assert run(tmp_path / "rows", *options, "--sequential") == 0
    for arm in ("baseline", "tuned"):
        assert same(tmp_path / "turns" / arm / "seed-0", tmp_path / "rows" / arm / "seed-0")


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
            assert records(whole / arm / seed) == records(out / arm / seed)


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
    assert f"stopped by {number.name}; the same command continues" in capsys.readouterr().err
    for arm, step in steps.items():
        stopped = read_run(tmp_path / arm / "seed-0")
        assert (stopped.status, stopped.summary["stopped_by"]) == ("stopped", number.name)
        assert RunFolder(tmp_path / arm / "seed-0").checkpoints.latest() == step
    assert_ends_alike(whole, tmp_path)


def planned(path: Path, **options: Any) -> PlannedRun:
    config = replace(resnet.PRESETS["smoke"], arm="sift", seed=4)
    return PlannedRun(config, path, updates=10, seconds=20.0, budget={}, table={}, **options)


def test_a_planned_run_says_how_far_it_is(tmp_path: Path) -> None:
    one = planned(tmp_path / "one", label=", lr 0.1")
    assert (one.name, one.status, one.over) == ("sift, seed 4, lr 0.1", "new", False)
    for status, over in (("running", False), ("stopped", False), ("finished", True)):
        write(replace(made("sift", 4, status=status), path=Path(status)), tmp_path)
        run = planned(tmp_path / status)
        assert (run.status, run.over) == (status, over)


def test_time_left_goes_by_the_updates_made_since_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("sifting.compare.turns.time.monotonic", lambda: now[0])
    one, two = planned(tmp_path / "one"), planned(tmp_path / "two")
    left = TimeLeft([one, two])
    assert left.seconds is None, "nothing to go by yet"
    now[0] += 30
    left.note(one, 5)  # 10 of 40 reference seconds took 30
    assert left.seconds == pytest.approx(90)
    left.end(two)  # it diverged: none of it is to come
    assert left.seconds == pytest.approx(30)
    left.note(one, 10)
    assert left.seconds == 0


@pytest.mark.parametrize("which", ["tuned", "tuned/seed-0"])
def test_nothing_is_written_through_a_link_in_the_folder(
    which: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "all" / which
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "elsewhere")
    assert run(tmp_path / "all", "--arms", "tuned", "--seeds", "0", "--no-control") == 2
    assert f"{which} is a link" in capsys.readouterr().err
    assert list((tmp_path / "elsewhere").iterdir()) == []
