"""Short comparisons by the command, and what is in their folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from sifting.cli import main as sift
from sifting.training.run_folder import read_run
from sifting.training.run_writer import RunFolder

OWN = "tests.helpers.problems:build"
FAST = ["--evaluations", "4", "--audit-every", "5"]


def measure_briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calibrate in two rounds: what is measured does not matter, that it is measured does."""
    for name, value in (("FIRST", 1), ("FEWEST", 2), ("MOST", 2)):
        monkeypatch.setattr(f"sifting.compare.calibration.{name}", value)


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


def records(path: Path) -> list[Any]:
    return [
        {k: v for k, v in line.items() if k not in ("seconds", "load")}
        for line in read_run(path).metrics
    ]


def manifest(out: Path) -> Any:
    return json.loads((out / "comparison.json").read_text())
