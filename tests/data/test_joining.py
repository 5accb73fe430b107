from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from sifting import Sifter
from sifting.data.filling import Filling
from sifting.data.joining import join
from sifting.data.samples import Samples


def text(*lengths: int, pad: int = 9) -> dict[str, Any]:
    """Sentences of some lengths, padded to the longest."""
    longest = max(lengths)
    mask = torch.tensor([[1] * n + [0] * (longest - n) for n in lengths])
    ids = torch.arange(longest).repeat(len(lengths), 1).masked_fill(mask == 0, pad)
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def test_sequences_are_filled_up_with_what_the_batch_pads_with() -> None:
    found = join([text(3, 2), text(5)])
    assert found["input_ids"].tolist() == [[0, 1, 2, 9, 9], [0, 1, 9, 9, 9], [0, 1, 2, 3, 4]]
    assert found["attention_mask"].sum(1).tolist() == [3, 2, 5]
    assert found["labels"][0].tolist() == [0, 1, 2, -100, -100]


def test_one_tensor_under_two_keys_is_filled_up_under_both() -> None:
    short, long = torch.ones(1, 2, dtype=torch.long), torch.ones(1, 3, dtype=torch.long)
    parts = [{"input_ids": ids, "labels": ids} for ids in (short, long)]
    found = join(parts, filling=Filling(7))
    assert found["input_ids"].tolist() == [[1, 1, 7], [1, 1, 1]]
    assert found["labels"].tolist() == [[1, 1, -100], [1, 1, 1]]


def test_a_single_value_that_several_members_would_take_is_refused() -> None:
    parts = [(torch.ones(1, n), torch.ones(1, n), ["name"]) for n in (2, 3)]
    with pytest.raises(ValueError, match=r"pad=0 .*member 0, member 1 .*pad=\{'member 0': …, "):
        join(parts, filling=Filling(0))
    x, y, _ = join(parts, filling=Filling({"member 0": 0, "member 1": -1}))
    assert x[0].tolist() == [1, 1, 0]
    assert y[0].tolist() == [1, 1, -1]


def test_members_of_every_kind() -> None:
    parts = [
        (torch.zeros(2, 3), np.arange(2), ["a", "b"]),
        (torch.ones(1, 3), np.arange(1), ["c"]),
    ]
    x, numbers, names = join(parts)
    assert x.shape == (3, 3)
    assert numbers.tolist() == [0, 1, 0]
    assert names == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (
            [{"x": torch.ones(1, 2)}, {"x": torch.ones(1, 3)}],
            r"x has 2 and 3 positions .* pass pad=\{'x': …\}, or draws='batch'",
        ),
        (
            [{"x": torch.ones(1, 2, 4)}, {"x": torch.ones(1, 2, 5)}],
            r"x is of shape \(1, 2, 4\) and \(1, 2, 5\)",
        ),
        (
            [(torch.ones(2, 1), torch.ones(2)), (torch.ones(2, 1),)],
            "one has 2 members .* another 1 members",
        ),
        ([{"x": torch.ones(2)}, {"x": ["a", "b"]}], "cannot be joined: (x is a|one has)"),
    ],
)
def test_what_cannot_be_joined_is_refused_by_name(parts: list[Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        join(parts)


def test_packed_sequences_are_joined() -> None:
    sequences = [torch.randn(length, 2) for length in (2, 5, 3, 4)]
    halves = [pack_sequence(sequences[i : i + 2], enforce_sorted=False) for i in (0, 2)]
    x, _ = join([(half, torch.arange(2)) for half in halves])
    for got, want in zip(unpack_sequence(x), sequences, strict=True):
        assert torch.equal(got, want)


def test_what_goes_along_with_all_samples_must_be_the_same() -> None:
    def batch(rows: int, **more: Any) -> dict[str, Any]:
        return {"x": torch.ones(3, 2), "table": torch.ones(rows), "split": f"part {rows}", **more}

    samples = Samples("x")
    assert join([batch(5), batch(5)], samples=samples)["table"].shape == (5,)
    with pytest.raises(ValueError, match=r"\['table'\].*\(5,\) and \(7,\).*draws='batch'"):
        join([batch(5), batch(7)], samples=samples)
    with pytest.raises(ValueError, match=r"\['temperature'\].*0.5 and 0.25.*draws='batch'"):
        join([batch(5, temperature=0.5), batch(5, temperature=0.25)], samples=samples)


def test_a_take_of_ones_own_divides_and_does_not_join() -> None:
    samples = Samples(lambda batch: batch.shape[1], lambda batch, indices: batch[:, indices])
    with pytest.raises(ValueError, match=r"draws='batch'.* or give a DataLoader"):
        join([torch.zeros(11, 4), torch.zeros(11, 4)], samples=samples)
    sifter = Sifter(
        nn.Linear(4, 3),
        policy="random",
        keep=0.5,
        draws="batch",
        batch_size=samples.batch_size,
        take=samples.take_with,
    )
    assert [batch.shape for batch in sifter([torch.zeros(11, 4)])] == [(11, 2)]
