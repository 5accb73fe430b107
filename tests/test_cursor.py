"""Where a sifter is in its loader: saved, found again, divided among ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from sifting import MemoryExit, Sifter
from sifting.cursor import KINDS, Cursor, choice_of
from sifting.data.position import IndexPosition
from tests.helpers.models import Net, candidates
from tests.helpers.states import same


def in_the_middle(kind: str, **options: Any) -> Sifter:
    """A sifter that has handed out two batches of an epoch."""
    data = TensorDataset(torch.randn(48, 8), torch.randint(0, 5, (48,)))
    loader: Any = DataLoader(data, batch_size=8) if kind == "indices" else candidates(6)
    draws = "batch" if kind == "batches" else "samples"
    sifter = Sifter(Net(), **{"exit": 1, "score": "loss", "draws": draws, **options})
    for number, _ in enumerate(sifter(loader)):
        if number == 1:
            break
    return sifter


@pytest.mark.parametrize("kind", KINDS)
def test_a_place_of_every_kind_comes_back(kind: str) -> None:
    cursor = in_the_middle(kind).cursor
    assert isinstance(cursor.position, KINDS[kind])
    again = Cursor()
    again.load_state_dict(cursor.state_dict())
    assert same(again.state_dict(), cursor.state_dict())
    assert again.resuming
    again.restart()
    assert (again.position, again.resuming) == (None, False)


def test_between_epochs_there_is_no_place() -> None:
    cursor = Cursor()
    assert cursor.state_dict() == {"batches_met": 0, "position": None}
    cursor.load_state_dict(cursor.state_dict())
    assert not cursor.resuming


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        ({"kind": "elsewhere"}, "one of batches, indices, pool"),
        ({"kind": None}, "one of batches"),
        ({"steps": -1}, "steps"),
    ],
)
def test_a_damaged_place_is_refused_and_changes_nothing(spoil: Any, message: str) -> None:
    state = in_the_middle("indices").cursor.state_dict()
    state["position"] = {**state["position"], **spoil}
    cursor = Cursor()
    with pytest.raises(ValueError, match=message):
        cursor.load_state_dict(state)
    assert cursor.position is None


def test_an_epoch_has_no_more_steps_than_the_run() -> None:
    state = in_the_middle("indices").cursor.state_dict()
    assert Cursor.checked(state, steps=2)[0] == 0
    with pytest.raises(ValueError, match="2 steps of an epoch are made, and 1 in all"):
        Cursor.checked(state, steps=1)


def test_a_place_is_divided_among_another_number_of_ranks() -> None:
    batches = in_the_middle("batches").cursor.state_dict()
    seen = batches["position"]["samples"]
    found = [
        Cursor.divided([batches, batches], rank, 4)["position"]["samples"] for rank in range(4)
    ]
    assert sum(found) == 2 * seen
    between = {"batches_met": 3, "position": None}
    assert Cursor.divided([between, between], 0, 1) == between
    pooled = in_the_middle("pool").cursor.state_dict()
    with pytest.raises(
        ValueError, match=r"cannot continue with 1: they pool .* Save between epochs"
    ):
        Cursor.divided([pooled, pooled], 0, 1)


def test_choices_that_were_made_ahead_by_ids_are_part_of_the_place() -> None:
    sifter = in_the_middle("indices", exit=MemoryExit(), audit_every=2)
    state = sifter.cursor.state_dict()
    _, place = Cursor.checked(state)
    assert isinstance(place, IndexPosition)
    chosen = [draw for draw in place.ahead if draw.choice is not None]
    for draw in chosen:
        choice, everything = choice_of(draw)
        assert len(choice.ids) == draw.size
        assert isinstance(everything, bool)


def test_what_gives_no_batches_is_refused_before_it_is_iterated() -> None:
    data = TensorDataset(torch.randn(12, 8), torch.randint(0, 5, (12,)))
    sifter = Sifter(Net(), exit=1, score="loss")
    with pytest.raises(
        TypeError, match=r"a TensorDataset is a data set.*DataLoader\(TensorDataset"
    ):
        sifter(data)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"sifter\(None\): give the loader"):
        sifter(None)  # type: ignore[arg-type]
    loader: Any = DataLoader(data, batch_size=4)
    loader = sifter(loader)  # under the same name, and so once more in the next epoch
    with pytest.raises(TypeError, match="the loader is sifted already"):
        sifter(loader)
