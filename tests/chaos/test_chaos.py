"""The short part of `make chaos`, in a process of its own that forks every run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_kills_damage_and_failing_writes_end_right_or_refused_by_name(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "tests.chaos", "--out", str(tmp_path), "--short", "--seed", "7"]
    ran = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    lines = (tmp_path / "results-7.jsonl").read_text().splitlines()
    kinds = [json.loads(line)["case"].split()[0] for line in lines]
    assert {kind: kinds.count(kind) >= 2 for kind in ("kill", "damage", "write")} == dict.fromkeys(
        ("kill", "damage", "write"), True
    )
