from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sifting.exits import loss_table
from sifting.exits.loss_table import GROUP, MOST, LossTable

FAR = 3 * GROUP
SLOTS = st.one_of(st.integers(0, 6), st.integers(0, FAR))
LOSSES = st.one_of(st.floats(-4, 9, width=32), st.sampled_from([math.nan, math.inf, 1e30, 3.0]))
WRITES = st.lists(st.lists(st.tuples(SLOTS, LOSSES), max_size=6), max_size=12)


@settings(max_examples=100)
@given(WRITES, st.booleans())
def test_levels_are_those_of_what_was_written_last(writes: Any, asks: bool) -> None:
    table, known = LossTable(), dict[int, float]()
    for write in writes:
        slots, losses = [slot for slot, _ in write], [loss for _, loss in write]
        table.write(table.slots(slots), torch.tensor(losses))
        known |= {slot: loss for slot, loss in write if math.isfinite(loss)}
        if asks:  # what is looked for late is the same as what is looked for at once
            table.levels()
    mean, highest = table.levels()
    if not known:
        assert (mean, highest) == (0.0, 0.0)
        return
    known = {slot: float(np.float32(loss)) for slot, loss in known.items()}
    exact = sum(map(abs, known.values())) / len(known)
    assert mean == pytest.approx(exact, rel=1e-6, abs=1e-9)
    assert highest == max(known.values())
    losses, passed = table.read(table.slots(list(known)))
    assert losses.tolist() == list(known.values())
    assert not passed.any()

    again = LossTable()
    again.load_state_dict(table.state_dict())
    assert again.levels() == (mean, highest)  # to the last bit, so that a run goes on the same
    slots = again.slots([0, 1])
    for other in (table, again):
        other.write(slots, torch.tensor([-1.0, -2.0]))
    assert again.levels() == table.levels()


def test_a_step_looks_at_few_of_many_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    table = LossTable(40 * GROUP)
    generator = torch.Generator().manual_seed(0)
    table.write(torch.arange(len(table)), torch.rand(len(table), generator=generator))
    looked = []
    find = LossTable._find_highest

    def counted(own: LossTable) -> float:
        looked.append(1)
        return find(own)

    monkeypatch.setattr(LossTable, "_find_highest", counted)
    for step in range(100):
        slots = torch.randint(0, len(table), (32,), generator=generator)
        if step % 10 == 0:
            slots[7] = table.losses_N.argmax()
        table.write(slots, 0.9 * torch.rand(32, generator=generator))
        assert table.levels()[1] == table.losses_N.max().item()
    assert 10 <= len(looked) < 15


def test_times_passed_over_are_counted_to_the_most() -> None:
    table = LossTable(3)
    slots = table.slots([0, 2])
    table.passed_N[2] = MOST - 1
    for _ in range(3):
        table.pass_over(slots, table.read(slots)[1])
    assert table.passed_N[:3].tolist() == [3, 0, MOST]


@pytest.mark.parametrize(
    "ids", [[3, 1], np.array([3, 1]), [np.int64(3), torch.tensor(1)], torch.tensor([3, 1])]
)
def test_whole_numbers_of_any_kind_are_places(ids: Any) -> None:
    assert LossTable().slots(ids).tolist() == [3, 1]
    assert LossTable(4).slots(ids).tolist() == [3, 1]


@pytest.mark.parametrize("ids", [["a", "b"], [1.5, 2.5], [(0, "l"), (0, "r")], [b"x", b"y"]])
def test_other_ids_get_places_as_they_come(ids: Any) -> None:
    table = LossTable()
    assert table.slots(ids).tolist() == [0, 1]
    assert table.slots(ids[::-1]).tolist() == [1, 0]
    with pytest.raises(ValueError, match="give all samples IDs of one kind"):
        mixed = LossTable()
        mixed.slots([4])
        mixed.slots(ids)


def test_numbers_that_are_no_places_are_named() -> None:
    for number in (-1, 4, 2**70):
        with pytest.raises(ValueError, match=f"the ID {number} "):
            LossTable(4).slots([0, number])
    with pytest.raises(ValueError, match="the ID -1 is not one of a MemoryExit"):
        LossTable().slots([3, -1])
    assert LossTable().slots([]).tolist() == []


def test_numbers_far_apart_are_keys_and_take_no_room() -> None:
    table = LossTable()
    far = [loss_table.MANY, -(2**62), 2**70, 5]
    assert table.slots(far).tolist() == [0, 1, 2, 3]
    assert table.slots(torch.tensor([5, -(2**62)])).tolist() == [3, 1]
    assert len(table) == 4

    near = LossTable()  # until such a number comes, numbers are places
    near.write(near.slots([3]), torch.tensor([1.5]))
    assert near.slots([2**40]).tolist() == [4]
    assert near.read(near.slots([3]))[0].tolist() == [1.5]
    again = LossTable()
    again.load_state_dict(near.state_dict())
    assert again.slots([2**40, 3]).tolist() == [4, 3]

    near = LossTable()  # room that grows as numbers are met goes on growing
    near.reserve(loss_table.MANY // 2)
    assert near.slots([loss_table.MANY]).tolist() == [loss_table.MANY]


class Shy:
    """Prints without telling which one it is."""

    def __repr__(self) -> str:
        return "Shy()"


def test_keys_that_print_alike_are_not_taken_for_one() -> None:
    table, one = LossTable(), Shy()
    assert table.slots([one, one]).tolist() == [0, 0]
    with pytest.raises(ValueError, match=r"the IDs Shy\(\) and Shy\(\) are different and print"):
        table.slots([Shy()])


def test_room_that_was_made_ahead_is_for_ids_of_any_kind() -> None:
    table = LossTable()
    table.reserve(4)
    assert table.slots(["a", "b"]).tolist() == [0, 1]
    again = LossTable()
    again.load_state_dict(LossTable().state_dict())
    assert again.slots(["a"]).tolist() == [0]
    numbered = LossTable()
    numbered.write(numbered.slots([3]), torch.tensor([1.0]))
    again.load_state_dict(numbered.state_dict())
    with pytest.raises(ValueError, match="give all samples IDs of one kind"):
        again.slots(["a"])
