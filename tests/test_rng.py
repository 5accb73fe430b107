"""The global random streams of a process: kept, put back, saved."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from sifting.rng import (
    RandomState,
    StreamWatch,
    load_random_state,
    save_random_state,
    seed_all,
)


def drawn() -> tuple[float, float, float, float]:
    """One number of each stream; Gaussians leave a second one behind for the next call."""
    return (
        float(torch.rand(())),
        random.random(),
        random.gauss(0, 1),
        float(np.random.standard_normal()),  # noqa: NPY002
    )


def test_a_seed_decides_every_global_stream_and_ranks_differ_in_each() -> None:
    seed_all(7)
    first = drawn()
    for rank in (1, 2, 63):
        seed_all(7, rank=rank)
        assert not set(drawn()) & set(first), f"rank {rank} would drop out what the first does"
    seed_all(7)
    assert drawn() == first


def test_streams_go_on_as_if_nothing_had_happened() -> None:
    drawn()
    state = RandomState.now()
    first = drawn()
    assert drawn() != first
    state.restore()
    assert drawn() == first


def test_a_saved_state_is_tensors_and_numbers_and_comes_back(tmp_path: Any) -> None:
    drawn()
    torch.save(save_random_state(), tmp_path / "state.pt")
    first = drawn()
    load_random_state(torch.load(tmp_path / "state.pt", weights_only=True))
    assert drawn() == first


def of_numpy() -> float:
    return float(np.random.rand())  # noqa: NPY002


@pytest.mark.parametrize("draw", [lambda: torch.rand(()), random.random, of_numpy])
def test_one_number_of_any_stream_is_noticed(draw: Any) -> None:
    before, watch = RandomState.now(), StreamWatch(torch.device("cpu"))
    assert before.same_as(RandomState.now())
    assert not watch.drawn
    draw()
    assert not before.same_as(RandomState.now())
    assert watch.drawn


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("torch",), torch.zeros(3, dtype=torch.uint8)),
        (("python", "words"), torch.zeros(5, dtype=torch.long)),
        (("python", "version"), -1),
        (("numpy", "keys"), torch.zeros(5, dtype=torch.long)),
        (("numpy", "has_gauss"), 2),
    ],
    ids=lambda value: ".".join(value) if isinstance(value, tuple) else "",
)
def test_a_damaged_state_is_refused_and_changes_nothing(place: tuple[str, ...], value: Any) -> None:
    plain = save_random_state()
    inside = plain
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    before = RandomState.now()
    with pytest.raises(ValueError, match=f"{place[0]}|{place[-1]}"):
        load_random_state(plain)
    assert before.same_as(RandomState.now())
