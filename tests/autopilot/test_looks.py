"""When to look at held-out samples, and at how many."""

from __future__ import annotations

import pytest

from sifting.autopilot.looks import BUDGET, FEWEST, FORWARD, LOOKING, plan_looks


@pytest.mark.parametrize("steps", [200, 1000, 20_000])
@pytest.mark.parametrize("batch", [8, 32, 256])
def test_all_looks_together_stay_within_their_share_of_the_run(steps: int, batch: int) -> None:
    plan = plan_looks(steps, batch=batch, held_out=10_000)
    spent = len(plan.steps) * plan.samples * FORWARD / batch
    assert spent <= BUDGET * LOOKING * steps
    assert all(1 <= step <= steps for step in plan.steps)
    assert list(plan.steps) == sorted(set(plan.steps))


def test_a_run_that_cannot_afford_a_telling_look_has_none() -> None:
    assert plan_looks(100, batch=4, held_out=10_000).steps == ()
    assert plan_looks(10_000, batch=32, held_out=FEWEST - 1).steps == ()
    assert plan_looks(10_000, batch=32, held_out=FEWEST).samples == FEWEST


def test_without_an_end_looks_come_ever_more_seldom() -> None:
    plan = plan_looks(None, batch=64, held_out=10_000)
    gaps = [after - before for before, after in zip(plan.steps, plan.steps[1:], strict=False)]
    assert gaps == sorted(gaps)
    first = plan.steps[0]
    assert plan.due(first - 0.5, first + 0.5), (
        "where a step is worth more than one, it is not missed"
    )
    assert not plan.due(first, first + 1), "nor is it made twice"
