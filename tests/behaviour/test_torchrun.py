"""A recipe on two processes, stopped in the middle and resumed."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest
import torch

from sifting.training.checkpoints import Checkpoints
from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder
from tests.helpers.processes import LIMIT, run_ranks, torchrun

PROCESSES = 2
# dropout's place is taken by random picks and augmentation: both are drawn on every rank
COMMAND = "train resnet smoke --arm default --evaluations 8 --recalibrate 0"
SMALL = "--images 400 --side 8 --batch 10 --epochs 2"
WORDS = ["-m", "sifting.cli.main", *COMMAND.split(), *SMALL.split(), "--out"]


def test_two_processes_train_stop_together_and_go_on_to_the_same_weights(tmp_path: Path) -> None:
    cut = torchrun([*WORDS, tmp_path / "cut"])
    deadline = time.monotonic() + LIMIT
    folder = RunFolder(tmp_path / "cut")
    while (folder.checkpoints.latest() or 0) < 5 and time.monotonic() < deadline:
        time.sleep(0.05)
    cut.send_signal(signal.SIGTERM)  # torchrun hands it on to both
    said = cut.communicate(timeout=LIMIT)
    stopped = read_run(tmp_path / "cut")
    assert stopped.status == "stopped", said
    assert stopped.summary["stopped_by"] == "SIGTERM"
    assert stopped.summary["updates"] % 10 == 0  # the place where ranks agree
    for words in ([tmp_path / "whole"], [tmp_path / "cut", "--resume"]):
        done = run_ranks([*WORDS, *words])
        assert done.returncode == 0, done
    runs = [read_run(tmp_path / name) for name in ("whole", "cut")]
    for run in runs:
        assert run.summary["updates"] == 2 * (400 // (10 * PROCESSES))
        assert run.metrics[-1]["samples_trained"] == run.summary["updates"] * 10 * PROCESSES
        assert run.metrics[-1]["candidates_seen"] == 2 * run.metrics[-1]["samples_trained"]
    last = runs[0].summary["updates"]
    ends = [RunFolder(tmp_path / name).checkpoints.load(last) for name in ("whole", "cut")]
    assert len(ends[0]["ranks"]) == PROCESSES
    for name, value in ends[0]["model"].items():
        assert torch.equal(value, ends[1]["model"][name]), name


def test_a_rank_that_is_killed_twice_and_then_hangs_is_started_again_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = (  # checkpoints in the middle of what a record averages
        "tiny --arm tuned --updates 20 --checkpoint-every 3u --evaluations 2 --rank-timeout 5s "
        "--resume=auto --out"
    )
    words = ["-m", "sifting.cli.main", "train", "tests.helpers.dying:RECIPE", *options.split()]
    whole = torchrun(
        [*words, tmp_path / "whole"]
    )  # by what starts the other: from the same weights
    told = whole.communicate(timeout=LIMIT)
    assert whole.returncode == 0, told
    (tmp_path / "marks").mkdir()
    monkeypatch.setenv("DYING", str(tmp_path / "marks"))
    dying = torchrun([*words, tmp_path / "dying"], restarts=3)
    said = "".join(dying.communicate(timeout=LIMIT))
    assert dying.returncode == 0, said
    assert len(list((tmp_path / "marks").iterdir())) == 3
    assert "rank 1 (process " in said, said
    assert "has not moved on for" in said, said
    ends = [Checkpoints(tmp_path / name / "checkpoints").load(20) for name in ("whole", "dying")]
    for name, value in ends[0]["model"].items():
        assert torch.equal(value, ends[1]["model"][name]), name
    logs = [
        [(m["kind"], m["step"], m.get("loss"), m.get("accuracy")) for m in run.metrics]
        for run in (read_run(tmp_path / name) for name in ("whole", "dying"))
    ]
    assert logs[0] == logs[1]
