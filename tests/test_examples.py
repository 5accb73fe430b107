"""Every example runs, and sifts; without the line that sifts it makes as many updates."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch.optim.optimizer import register_optimizer_step_post_hook

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))

LOOP = {"in sifter(loader):": "in loader:"}
SFT = {
    "trainer = SiftSFTTrainer(": "trainer = SFTTrainer(",
    'sift={"exit": 2, "score": "loss", "keep": 0.5},': "",
    "print(trainer.sifter.stats())": "",
}
# what each example says to sift, and what it would say to train on everything
WITHOUT: dict[str, dict[str, str]] = {
    "plain_loop": LOOP,
    "accelerate_loop": LOOP,
    "lora": LOOP,
    "lightning_fit": {
        "callbacks=[sifting],": "callbacks=[],",
        "sifting.loader(loader)": "loader",
    },
    "sft_lora": {
        "from trl import SFTConfig": "from trl import SFTConfig, SFTTrainer",
        "from sifting.integrations.trl import SiftSFTTrainer": "",
        **SFT,
    },
    "pretrain_folder": {
        "from trl import SFTConfig": "from trl import SFTConfig, SFTTrainer",
        "from sifting.integrations.trl import SiftSFTTrainer": "",
        **SFT,
    },
    "sentences": {
        "trainer = SiftTrainer(": "trainer = hf.Trainer(",
        'sift={"exit": 1, "score": "loss", "keep": 0.5},': "",
        "print(trainer.sifter.stats())": "",
    },
    "hf_trainer": {
        "from sifting.integrations.trainer import SiftTrainer": "from transformers import Trainer",
        "trainer = SiftTrainer(": "trainer = Trainer(",
        'sift={"exit": 1, "score": "loss", "keep": 0.5, "warmup_steps": 8},': "",
        "print(trainer.sifter.stats())": "",
    },
}


@contextmanager
def fresh_process() -> Iterator[None]:
    """Accelerate keeps its settings in singletons, and an example expects a fresh process."""
    try:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        yield
    finally:
        for state in (AcceleratorState, GradientState, PartialState):
            state._reset_state()
        torch._dynamo.reset()


def updates(source: str, path: Path) -> int:
    """How many optimizer steps a script makes."""
    steps: list[Any] = []
    handle = register_optimizer_step_post_hook(lambda *_: steps.append(1))
    try:
        with fresh_process():
            exec(compile(source, str(path), "exec"), {"__name__": "__main__"})
    finally:
        handle.remove()
    return len(steps)


@pytest.mark.filterwarnings("default")  # of the trainers, not ours
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_sifts_and_makes_as_many_updates_as_without(
    path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(path)])
    assert len(path.read_text().splitlines()) < 80
    source = plain = path.read_text()
    sifted = updates(source, path)
    assert "(50%); " in capsys.readouterr().out or path.stem == "hf_trainer"
    for line, other in WITHOUT[path.stem].items():
        assert plain.count(line) == 1, line
        plain = plain.replace(line, other)
    assert updates(plain, path) == sifted > 5
    assert "(50%); " not in capsys.readouterr().out


def test_there_are_examples() -> None:
    assert {path.stem for path in EXAMPLES} == set(WITHOUT)
