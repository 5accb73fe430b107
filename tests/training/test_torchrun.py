"""A recipe on two processes, stopped in the middle and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from sifting.training.checkpoints import Checkpoints
from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder

PROCESSES = 2
# dropout's place is taken by random picks and augmentation: both are drawn on every rank
COMMAND = "train resnet smoke --arm default --batch 20 --epochs 2 --evaluations 7 --recalibrate 0"


def launch(
    folder: Path, *more: str, command: str = COMMAND, restarts: int = 0, **env: str
) -> subprocess.Popen[str]:
    run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
    run += [f"--max-restarts={restarts}"]
    return subprocess.Popen(
        [
            sys.executable,
            *run,
            "-m",
            "sifting.cli.main",
            *command.split(),
            "--out",
            str(folder),
            *more,
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_two_processes_train_stop_together_and_go_on_to_the_same_weights(tmp_path: Path) -> None:
    whole, cut = launch(tmp_path / "whole"), launch(tmp_path / "cut")
    deadline = time.monotonic() + 120
    while (
        RunFolder(tmp_path / "cut").checkpoints.latest() or 0
    ) < 10 and time.monotonic() < deadline:
        time.sleep(0.05)
    cut.send_signal(signal.SIGTERM)  # torchrun hands it on to both
    said = cut.communicate(timeout=120)[0]
    stopped = read_run(tmp_path / "cut")
    assert stopped.status == "stopped", said
    assert stopped.summary["stopped_by"] == "SIGTERM"
    assert stopped.summary["updates"] % 10 == 0  # the place where ranks agree
    again = launch(tmp_path / "cut", "--resume")
    for process in (whole, again):
        out = process.communicate(timeout=240)[0]
        assert process.returncode == 0, out
    runs = [read_run(tmp_path / name) for name in ("whole", "cut")]
    for run in runs:
        assert run.summary["updates"] == 2 * (1400 // (20 * PROCESSES))
        assert run.metrics[-1]["samples_trained"] == run.summary["updates"] * 20 * PROCESSES
        assert run.metrics[-1]["candidates_seen"] == 2 * run.metrics[-1]["samples_trained"]
    last = runs[0].summary["updates"]
    ends = [RunFolder(tmp_path / name).checkpoints.load(last) for name in ("whole", "cut")]
    assert len(ends[0]["ranks"]) == PROCESSES
    for name, value in ends[0]["model"].items():
        assert torch.equal(value, ends[1]["model"][name]), name


def test_a_rank_that_is_killed_twice_and_then_hangs_is_started_again_each_time(
    tmp_path: Path,
) -> None:
    command = (
        "train tests.helpers.dying:RECIPE tiny --arm tuned --updates 20 --checkpoint-every 2u "
        "--evaluations 2 --rank-timeout 4s --resume=auto"
    )
    (tmp_path / "marks").mkdir()
    env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    dying = launch(
        tmp_path / "dying", command=command, restarts=3, DYING=str(tmp_path / "marks"), **env
    )
    whole = launch(tmp_path / "whole", command=command, **env)
    said = [process.communicate(timeout=400)[0] for process in (whole, dying)]
    assert [whole.returncode, dying.returncode] == [0, 0], said[0][-2000:] + said[1][-6000:]
    assert len(list((tmp_path / "marks").iterdir())) == 3
    assert "rank 1 (process " in said[1], said[1]
    assert "has not moved on for" in said[1], said[1]
    ends = [Checkpoints(tmp_path / name / "checkpoints").load(20) for name in ("whole", "dying")]
    for name, value in ends[0]["model"].items():
        assert torch.equal(value, ends[1]["model"][name]), name
    logs = [
        [(m["kind"], m["step"], m.get("loss"), m.get("accuracy")) for m in run.metrics]
        for run in (read_run(tmp_path / name) for name in ("whole", "dying"))
    ]
    assert logs[0] == logs[1]
