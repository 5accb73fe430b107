"""A place in an epoch: saved in the middle of it, and found again."""

from __future__ import annotations

import io
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from sifting.data.generators import Streams
from sifting.data.position import DrawnStep, IndexPosition, Position, divide, optional
from sifting.data.stream import StreamPosition
from sifting.plain import Plain
from sifting.rng import RandomState

NOW = RandomState.now()
GENERATORS = {"sampler": torch.Generator().get_state()}
BATCHES = Position(
    NOW, GENERATORS, warm=True, batches=3, pieces=1, samples=36, counted=True, fetch=NOW, before=NOW
)
DRAWN = DrawnStep([3, 1], 2, 4, sifts=True, choice={"any": "thing"}, state=NOW)
STREAMS = Streams(NOW, GENERATORS)
INDICES = IndexPosition(
    STREAMS,
    STREAMS,
    seed=2**63,
    steps=5,
    stream=StreamPosition(passed=2, sizes=((8, 5),)),
    ahead=(DRAWN,),
    later=GENERATORS,
    replicas=2,
)


def saved(plain: Any) -> Any:
    """What torch reads back without running code."""
    buffer = io.BytesIO()
    torch.save(plain, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


@pytest.mark.parametrize("place", [BATCHES, INDICES], ids=["batches", "indices"])
def test_a_place_is_plain_values_and_comes_back(place: Any) -> None:
    again = type(place).from_plain(saved(place.to_plain()))
    for item in fields(place):
        one, other = getattr(place, item.name), getattr(again, item.name)
        if item.name in ("start", "fetch", "before"):
            assert one.same_as(other)
        elif item.name in ("begun", "asked"):
            assert one.state.same_as(other.state)
            assert torch.equal(one.generators["sampler"], other.generators["sampler"])
        elif item.name in ("generators", "later"):
            assert torch.equal(one["sampler"], other["sampler"])
        elif item.name == "ahead":
            assert (other[0].indices, other[0].choice) == ([3, 1], {"any": "thing"})
        else:
            assert one == other, item.name


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"batches": -1}, "'batches' of the place"),
        ({"warm": 1}, "'warm'"),
        ({"generators": {"sampler": torch.zeros(3)}}, "the bytes of a generator's state"),
        ({"start": {}}, "random streams"),
        ({"ranks": 0}, "'ranks'"),
    ],
)
def test_a_damaged_place_is_refused_by_its_name(spoil: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Position.from_plain({**BATCHES.to_plain(), **spoil})


def test_a_step_drawn_ahead_has_no_fewer_candidates_than_it_trains() -> None:
    with pytest.raises(ValueError, match="'candidates' of a step drawn ahead"):
        DrawnStep.from_plain({**DRAWN.to_plain(), "candidates": 1})


def test_samples_are_divided_among_another_number_of_ranks() -> None:
    others = [replace(BATCHES, samples=n) for n in (10, 11)]
    found = [BATCHES.divided(others, rank, 4) for rank in range(4)]
    assert [place.samples for place in found] == [6, 5, 5, 5]
    assert {(place.candidates, place.ranks, place.pieces) for place in found} == {(21, 4, 0)}


def test_an_order_that_ranks_share_is_gone_on_with_by_as_many_as_divide_it() -> None:
    place = replace(INDICES, ahead=())
    found = place.divided([place, place], 4)
    assert (found.ranks, found.stream.passed, found.stream.sizes) == (4, 1, ((4, 5),))


@pytest.mark.parametrize(
    ("change", "world", "message"),
    [
        ({"replicas": 3}, 1, "their sampler does not divide one order"),
        ({"ahead": (DRAWN,)}, 1, "had read ahead"),
        ({}, 3, "their batches do not divide among 3"),
    ],
)
def test_what_cannot_be_divided_says_why(change: dict[str, Any], world: int, message: str) -> None:
    place = replace(INDICES, **{"ahead": (), **change})
    with pytest.raises(
        ValueError, match=rf"2 ranks saved .* cannot continue with {world}: .*{message}"
    ):
        place.divided([place, place], world)


def test_ranks_that_stopped_at_different_places_cannot_be_joined() -> None:
    place = replace(INDICES, ahead=())
    other = replace(place, stream=StreamPosition(passed=3))
    with pytest.raises(ValueError, match="stopped between two batches of the order"):
        place.divided([place, other], 4)


def test_parts_add_up_and_numbers_may_be_missing() -> None:
    for world in (1, 2, 3, 7):
        assert sum(divide(20, rank, world) for rank in range(world)) == 20
    found = Plain({"a": None, "b": 3}, "it")
    assert (optional(found, "a"), optional(found, "b")) == (None, 3)


class Silent:
    def __len__(self) -> int:
        raise NotImplementedError


def test_a_place_is_among_as_many_samples_as_there_were() -> None:
    place = replace(INDICES, samples=64)
    place.check_data(range(64))
    place.check_data(Silent())
    replace(INDICES, samples=None).check_data(range(3))  # saved before it was noted
    with pytest.raises(ValueError, match="an epoch of 64 samples, and the data set has 3"):
        place.check_data(range(3))
    plain = {name: value for name, value in place.to_plain().items() if name != "samples"}
    assert IndexPosition.from_plain(plain).samples is None
