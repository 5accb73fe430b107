from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from sifting.bench.tasks.digits import DIGITS
from sifting.training.assemble import loss_of, make_sifter
from sifting.training.rivals import BelowMean


def test_what_is_above_the_mean_is_always_kept() -> None:
    scores = torch.tensor([10.0, 9.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        drawn = BelowMean().draw(scores, 5, generator)
        assert {0, 1} <= set(drawn.places_K.tolist())
        assert len(set(drawn.places_K.tolist())) == 5


def test_its_weights_leave_the_mean_as_it_was() -> None:
    scores = torch.rand(40, generator=torch.Generator().manual_seed(1)).sort(descending=True).values
    losses = torch.randn(40, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    generator = torch.Generator().manual_seed(3)
    found = []
    for _ in range(1500):
        drawn = BelowMean().draw(scores, 28, generator)
        assert drawn.inclusion_P is not None
        kept = drawn.places_K
        found.append(float((losses[kept] / drawn.inclusion_P[kept]).sum() / 40))
    assert sum(found) / len(found) == pytest.approx(float(losses.mean()), abs=0.02)


@pytest.mark.parametrize("scores", [torch.ones(6), torch.tensor([math.inf] * 4 + [1.0, 0.0])])
def test_where_too_many_are_above_it_all_have_the_same_chance(scores: torch.Tensor) -> None:
    drawn = BelowMean().draw(scores, 3, torch.Generator())
    assert drawn.inclusion_P is not None
    assert drawn.inclusion_P.tolist() == [0.5] * 6


def test_its_arm_weights_the_loss_and_ends_before_the_run() -> None:
    config = replace(DIGITS.presets["smoke"], arm="infobatch")
    problem = DIGITS.problem(config, DIGITS.read(config))
    sifter = make_sifter(config, problem, 80, None)
    assert sifter.schedule.stop_step == 70
    loss = loss_of(config, problem, sifter)
    weighted = 0
    for batch in sifter(problem.loader(sifter)):
        assert problem.losses is not None
        expected = (sifter.weights * problem.losses(problem.model, batch)).mean()
        assert torch.equal(loss(problem.model, batch), expected)
        weighted += bool((sifter.weights != 1).any())
    assert weighted > 3


def test_a_problem_without_losses_of_samples_is_refused() -> None:
    config = replace(DIGITS.presets["smoke"], arm="infobatch")
    problem = replace(DIGITS.problem(config, DIGITS.read(config)), losses=None)
    with pytest.raises(
        ValueError, match=r"'infobatch' weights the losses .* give the Problem losses="
    ):
        loss_of(config, problem, make_sifter(config, problem, 80, None))
