"""Means over seeds and their spread."""

from __future__ import annotations

import numpy as np
import pytest

from sifting.report import bands


def test_a_seed_on_a_busy_machine_does_not_cut_the_curve_short() -> None:
    steps, figures = np.array([10.0, 20.0]), np.array([0.5, 0.9])
    found = bands.band([(steps, steps, figures), (steps, 3 * steps, figures - 0.1)])
    assert found is not None
    assert found.x.tolist() == [20.0, 40.0]
    assert found.mean.tolist() == pytest.approx([0.45, 0.85])
    assert found.std.tolist() == pytest.approx([0.1 / 2**0.5] * 2)
    assert bands.band([(steps[:0],) * 3]) is None


def test_the_last_two_evaluations_make_no_cliff_and_ends_are_ends() -> None:
    steps = np.array([100.0, 200.0, 300.0, 400.0, 403.0])
    one = (steps, steps, np.array([0.1, 0.2, 0.3, 0.4, 0.3]))
    found = bands.band([one])
    assert found is not None
    assert found.x.tolist() == [100.0, 200.0, 300.0, 403.0]
    ahead = steps + np.array([0, 0, 0, 0, 20.0])
    two = (ahead, ahead, np.array([0.1, 0.2, 0.3, 0.4, 0.5]))
    found = bands.band([one, two])
    assert found is not None
    assert found.x[-1] == 413.0  # the mean of the ends
    assert found.mean[-1] == pytest.approx(0.4)
    half = (steps[:2], steps[:2], np.array([0.1, 0.2]))
    found = bands.band([one, half])
    assert found is not None
    assert found.x.tolist() == [100.0, 200.0], "one that is only half way has no end yet"


def test_thinning_keeps_what_is_seen() -> None:
    rng = np.random.default_rng(0)
    x = np.arange(50_000.0)
    whole = bands.Band(x, rng.standard_normal(50_000), np.full(50_000, 0.1), 3)
    thin = bands.thinned(whole, 200)
    assert len(thin.x) <= 4 * 200
    for start in range(0, 50_000, 250):
        before, after = (b.mean[(b.x >= start) & (b.x < start + 250)] for b in (whole, thin))
        assert (before.min(), before.max()) == (after.min(), after.max())
    short = bands.Band(x[:800], x[:800], x[:800], 3)
    assert bands.thinned(short, 200) is short
