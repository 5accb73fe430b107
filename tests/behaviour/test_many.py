"""Two processes train what one does with the joined batch: through Accelerate, the Trainer and TRL."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.behaviour import many_run
from tests.helpers.processes import ROOT, run_ranks

LAUNCH = [
    "-m",
    "accelerate.commands.launch",
    "--multi_gpu",
    "--num_processes=2",
    "--num_machines=1",
]
LAUNCH += ["--mixed_precision=no", "--dynamo_backend=no"]


def check(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """The same samples in every step, and the same weights at the end."""
    assert found["seen"] == wanted["seen"]
    for one, other in zip(found["weights"], wanted["weights"], strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("default")  # of the trainers, not ours
def test_a_loop_under_accelerate_launch(tmp_path: Path) -> None:
    launched = subprocess.run(
        [sys.executable, *LAUNCH, many_run.__file__, "loops", str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert launched.returncode == 0, launched.stderr[-4000:]
    found = torch.load(tmp_path / "found.pt")
    wanted = many_run.run_all("loops", tmp_path)
    for name in many_run.LOOPS:
        check(found[name], wanted[name])
    assert "the ranks have 9, 8 batches of this epoch" in found["uneven"]["error"]
    assert "even_batches=True" in found["uneven"]["error"]


@pytest.mark.filterwarnings("default")
def test_the_trainers(tmp_path: Path) -> None:
    words = [many_run.__file__, "trainers", tmp_path]
    done = run_ranks(words, timeout=300, first=["transformers.trainer", "trl"])
    assert done.returncode == 0, done.stderr[-4000:]
    found = torch.load(tmp_path / "found.pt")
    wanted = many_run.run_all("trainers", tmp_path)
    for name, one in wanted.items():
        check(found[name], one)
