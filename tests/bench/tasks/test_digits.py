"""Handwritten digits of 8×8 pixels."""

from __future__ import annotations

from dataclasses import replace

import torch

from sifting.bench.tasks.digits import DIGITS, HELD_OUT, TRAIN
from sifting.model.find import find_stack

FULL = DIGITS.presets["full"]


def test_images_are_trained_held_out_or_tested() -> None:
    data = DIGITS.read(FULL)
    assert (len(data.train), len(data.held_out)) == (TRAIN, HELD_OUT)
    assert len(data.train) + len(data.held_out) + len(data.test) == 1797
    x, y = data.train.__getitems__([0, 1])
    assert float(x.min()) >= 0
    assert float(x.max()) <= 1
    assert y.dtype == torch.long
    assert len(DIGITS.read(replace(FULL, samples=50)).train) == 50


def test_the_split_does_not_depend_on_the_seed_of_a_run() -> None:
    one, other = (DIGITS.read(replace(FULL, seed=seed)).test.tensors_N[0] for seed in (0, 1))
    assert torch.equal(one, other)


def test_the_head_fits_after_each_layer() -> None:
    problem = DIGITS.problem(FULL, DIGITS.read(FULL))
    assert len(find_stack(problem.model)) == 4
