"""What is trained, and at what pace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from sifting import Sifter
from sifting.training.problem import Pace
from tests.helpers.problems import build


def test_a_loader_is_of_the_trained_batch_or_of_the_size_that_it_is_asked_for() -> None:
    sized = build(0)
    half = Sifter(sized.model, exit=1, score="loss", keep=0.5, draws="batch")
    assert sized.sized
    assert sized.loader(half).batch_size == 32, "both halves"
    assert sized.loader(Sifter(sized.model, exit=1, keep=0.5)).batch_size == 16
    own = object()
    plain = replace(sized, batches=lambda: own)
    assert not plain.sized
    assert plain.loader(half) is own
    assert not replace(sized, batches=dict).sized, "what has no signature takes nothing"


def test_a_checkpoint_is_about_the_model_and_two_moments() -> None:
    problem = build(0)
    tensors = [*problem.model.parameters(), *problem.model.buffers()]
    whole = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    assert problem.checkpoint_bytes() == 3 * whole


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"model": torch.nn.functional.relu}, TypeError, "must be a torch.nn.Module, got"),
        ({"batch": 0}, ValueError, "batch=0: give a whole number"),
        ({"batch": 2.5}, ValueError, "batch=2.5"),
    ],
)
def test_a_problem_that_cannot_be_is_named(
    given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        replace(build(0), **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"updates": 0}, "updates=0"),
        ({"log_every": 1.5}, "log_every=1.5: give a whole number"),
        ({"autocast": "fp8"}, "autocast='fp8': choose"),
        ({"clip": 0.0}, "clip=0.0 must be above 0"),
        ({"checkpoint_seconds": -1.0}, "checkpoint_seconds=-1.0 must be above 0"),
    ],
)
def test_a_pace_that_cannot_be_is_named(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Pace(**{"updates": 10, **given})
