"""Two gloo processes for real: each test starts a script of tests/ranks under torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from sifting import Sifter

SCRIPTS = Path(__file__).parent / "ranks"
LIMIT = 120  # seconds; a busy machine needs some of them to start


def torchrun(script: str, *arguments: object, restarts: int = 0) -> subprocess.CompletedProcess:
    """Run a script on two ranks of this machine."""
    return subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
            *("--nproc-per-node", "2", "--max-restarts", str(restarts)),
            *(str(SCRIPTS / script), *map(str, arguments)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def test_two_ranks_choose_as_one_process_does():
    done = torchrun("selecting.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed check_") == 6


def test_a_sharded_model_is_scored_as_a_whole_one_is():
    done = torchrun("sharding.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("passed check_") == 6


def test_choosing_together_needs_a_process_group():
    with pytest.raises(ValueError, match=r"no process group .*init_process_group\(\).*torchrun"):
        Sifter(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), exit=1, scope="global")
    with pytest.raises(ValueError, match="scope='world': choose 'rank' or 'global'"):
        Sifter(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), exit=1, scope="world")


def test_stats_of_a_plain_run_are_reduced_already():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    sifter = Sifter(model, exit=1, score="loss")
    sifter.select((torch.zeros(4, 2), torch.tensor([0, 1, 0, 1])))
    assert sifter.stats(reduce=True) == sifter.stats()
