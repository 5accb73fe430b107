"""Trainers on two real processes: each selects among its own candidates."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("kind", ["trainer", "lightning"])
def test_two_processes(tmp_path: Path, kind: str) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"),
            *(str(Path(__file__).with_name("ddp_run.py")), kind, str(tmp_path)),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [json.loads((tmp_path / f"rank{i}.json").read_text()) for i in range(2)]
    for found in ranks:
        assert found["kept all"]
        assert found["resumed"]
        assert found["updates"] == found["planned"]
        assert {len(ids) for ids in found["seen"]} == {found["size"]}
    first = [set(found["seen"][0]) for found in ranks]
    assert not first[0] & first[1]
