"""What other held-out samples would decide for."""

from __future__ import annotations

import torch

from sifting.autopilot.noted import Noted
from sifting.autopilot.options import PLAIN, Judged, Option
from sifting.autopilot.others import SETS, Others

HALF = Option("input", 2)


def test_sets_are_drawn_without_repeats_and_alike_each_time() -> None:
    stream = torch.get_rng_state()
    one, again = Others(30, of=100), Others(30, of=100)
    assert torch.equal(stream, torch.get_rng_state())
    assert len(one.sets) == SETS
    for found, same in zip(one.sets, again.sets, strict=True):
        assert torch.equal(found.drawn_N, same.drawn_N)
        assert len(found.drawn_N.unique()) == 30
        assert int(found.drawn_N.max()) < 100
    assert len({tuple(found.drawn_N.tolist()) for found in one.sets}) == SETS


def test_each_decides_by_its_own_samples_and_from_what_it_does() -> None:
    others = Others(5, of=10)
    low = others.sets[0].progress

    def judge(noted: Noted) -> list[Judged]:
        share = 0.5 if noted is low else 0.7
        return [Judged(HALF, share=share, error=0.02, speedup=0.5 + share)]

    assert others.decide(judge) == [PLAIN] + [HALF] * (SETS - 1)

    def between(noted: Noted) -> list[Judged]:
        return [Judged(HALF, share=0.55, error=0.02, speedup=1.05)]

    assert others.decide(between) == [PLAIN] + [HALF] * (SETS - 1), "in use, it is kept"
