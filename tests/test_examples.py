"""Every example runs, and sifts."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))


def forget() -> None:
    """Accelerate keeps its settings in singletons, and an example expects a fresh process."""
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()


@pytest.mark.filterwarnings("default")  # of the trainers, not ours
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_example(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    forget()
    runpy.run_path(str(path), run_name="__main__")
    forget()
    assert "(50%); " in capsys.readouterr().out or path.stem == "hf_trainer"
    torch._dynamo.reset()


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} >= {"hf_trainer", "lightning_fit", "plain_loop"}
