"""What wrappers have made of a model, as far as one process can show it."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
import torch
from torch import nn

from sifting import Sifter
from sifting.parallel.detect import replicated, unwrap


class Engine(nn.Module):
    """In place of DeepSpeed's: it holds the model, and calls it."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Engine:
    deepspeed = ModuleType("deepspeed")
    deepspeed.DeepSpeedEngine = Engine  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "deepspeed", deepspeed)
    return Engine(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)))


def test_the_model_inside_an_engine_is_scored(engine: Engine) -> None:
    assert unwrap(engine) is engine.module
    assert replicated(engine)
    assert not replicated(engine.module)
    sifter = Sifter(engine, exit=1, score="loss", keep=0.5)
    batch = (torch.randn(4, 2), torch.tensor([0, 1, 0, 1]))
    assert torch.equal(
        sifter.score(batch), Sifter(engine.module, exit=1, score="loss").score(batch)
    )


def test_parameters_that_zero_3_has_divided_are_refused(engine: Engine) -> None:
    for number, parameter in enumerate(engine.parameters()):
        parameter.ds_id = number  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"DeepSpeed's ZeRO-3.*zero_stage 1 or 2, or .*FSDP2"):
        Sifter(engine, exit=1)
