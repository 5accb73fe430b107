from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sifting.selection.schedule import Schedule, kept_count


@given(st.floats(0.001, 1), st.integers(1, 5000))
def test_kept_count_is_at_least_one_and_leaves_no_stray_piece(keep: float, size: int) -> None:
    count = kept_count(keep, size)
    assert 1 <= count <= size
    assert count >= keep * size - 1e-6
    assert -(-size // count) <= -(-1 // keep)


def test_phases() -> None:
    schedule = Schedule(keep=0.5, warmup_steps=4, stop_step=10, every=2)
    assert [
        schedule.sifts(step=s, batch=b) for s, b in ((3, 0), (4, 0), (5, 1), (6, 2), (10, 4))
    ] == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_keep_can_change_with_the_step() -> None:
    schedule = Schedule(keep=lambda step: 1.0 if step < 10 else 0.25)
    assert not schedule.sifts(step=9, batch=0)
    assert schedule.sifts(step=10, batch=0)
    assert schedule.count(step=10, size=64) == 16


@given(st.lists(st.integers(2, 9), max_size=12), st.integers(0, 9), st.integers(1, 3))
def test_steps_counts_what_a_simulation_hands_out(
    sizes: list[int], warmup: int, every: int
) -> None:
    schedule = Schedule(keep=0.4, warmup_steps=warmup, every=every)
    step, met = 0, 0
    for size in sizes:
        if step < warmup:
            step += len(range(0, size, kept_count(0.4, size)))
            continue
        step += 1 if met % every == 0 else len(range(0, size, kept_count(0.4, size)))
        met += 1
    assert schedule.steps(sizes) == step


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep": 0.0}, r"keep=0.0 is not in \(0, 1\]"),
        ({"keep": 1.5}, r"keep=1.5 is not in \(0, 1\]"),
        ({"keep": float("nan")}, "keep=nan"),
        ({"warmup_steps": -1}, "warmup_steps=-1"),
        ({"warmup_steps": 1.5}, "warmup_steps=1.5: give a whole number"),
        ({"every": 0}, "every=0: give a whole number of at least 1"),
        ({"warmup_steps": 5, "stop_step": 5}, "stop_step=5 leaves nothing to sift"),
    ],
)
def test_bad_settings_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Schedule(**options)


def test_a_keep_function_is_checked_when_it_answers() -> None:
    with pytest.raises(ValueError, match=r"keep\(step=3\) gave 2, which is not in \(0, 1\]"):
        Schedule(keep=lambda step: 2).keep_at(3)
