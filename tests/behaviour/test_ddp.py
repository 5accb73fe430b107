"""Trainers on two real processes: each selects among its own candidates."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.helpers.processes import run_ranks

TRAINERS = {"trainer": ["transformers.trainer"], "lightning": ["lightning.pytorch"]}


@pytest.mark.parametrize("kind", TRAINERS)
def test_two_processes(tmp_path: Path, kind: str) -> None:
    words = [Path(__file__).with_name("ddp_run.py"), kind, tmp_path]
    done = run_ranks(words, timeout=300, first=TRAINERS[kind])
    assert done.returncode == 0, done.stderr[-4000:]
    ranks = [json.loads((tmp_path / f"rank{i}.json").read_text()) for i in range(2)]
    for found in ranks:
        assert found["kept all"]
        assert found["resumed"]
        assert found["updates"] == found["planned"]
        assert {len(ids) for ids in found["seen"]} == {found["size"]}
    first = [set(found["seen"][0]) for found in ranks]
    assert not first[0] & first[1]
