"""A recipe on two processes, stopped in the middle and resumed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch

from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder

PROCESSES = 2
# dropout's place is taken by random picks and augmentation: both are drawn on every rank
COMMAND = "train resnet smoke --arm default --batch 20 --epochs 2 --evaluations 7 --recalibrate 0"


def launch(folder: Path, *more: str) -> subprocess.Popen[str]:
    run = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
    return subprocess.Popen(
        [
            sys.executable,
            *run,
            "-m",
            "sifting.cli.main",
            *COMMAND.split(),
            "--out",
            str(folder),
            *more,
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
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
