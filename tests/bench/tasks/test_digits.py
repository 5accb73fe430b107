"""Handwritten digits of 8×8 pixels."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from sifting.bench.tasks.digits import DIGITS, TRAIN
from sifting.model.find import find_stack

FULL = DIGITS.presets["full"]


def test_images_are_trained_held_out_or_tested() -> None:
    data = DIGITS.read(FULL)
    assert (len(data.train), len(data.held_out)) == (TRAIN - FULL.held_out, 200)
    assert len(data.train) + len(data.held_out) + len(data.test) == 1797
    x, y = data.train.__getitems__([0, 1])
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1
    assert y.dtype == torch.long
    assert len(DIGITS.read(replace(FULL, samples=50)).train) == 50
    fewer = DIGITS.read(replace(FULL, held_out=100))
    assert (len(fewer.train), len(fewer.held_out)) == (TRAIN - 100, 100)
    assert torch.equal(fewer.test.tensors_N[0], data.test.tensors_N[0]), "the same are tested"


def test_the_split_does_not_depend_on_the_seed_of_a_run() -> None:
    one, other = (DIGITS.read(replace(FULL, seed=seed)).test.tensors_N[0] for seed in (0, 1))
    assert torch.equal(one, other)


def test_the_head_fits_after_each_layer() -> None:
    for width in (64, 96):
        config = replace(FULL, width=width)
        problem = DIGITS.problem(config, DIGITS.read(config))
        assert len(find_stack(problem.model)) == 4


def test_settings_that_cannot_be_are_named() -> None:
    for wrong in ({"width": 0}, {"held_out": TRAIN}, {"held_out": 0}):
        with pytest.raises(ValueError, match="and less than 1200 held out"):
            replace(FULL, **wrong)
