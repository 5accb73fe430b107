"""Every example runs, and sifts."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


@pytest.mark.filterwarnings("default")  # of the trainers, not ours
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    assert "(50%); " in capsys.readouterr().out or path.stem == "hf_trainer"
    torch._dynamo.reset()


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"hf_trainer", "lightning_fit", "plain_loop"}
