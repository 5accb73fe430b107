"""One member of a batch: how many samples it holds, and some of them."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.utils.rnn import pack_sequence, pad_packed_sequence

from sifting.data.member import indivisible, own_size, pick

TWO_OF_THREE = torch.tensor([2, 0])


def ragged(*lengths: int) -> torch.Tensor:
    parts = [torch.full((n, 2), float(i)) for i, n in enumerate(lengths)]
    return torch.nested.nested_tensor(parts, layout=torch.jagged)


@pytest.mark.parametrize(
    ("column", "found"),
    [
        (torch.tensor([[1], [2], [3]]), [[3], [1]]),
        (np.array([1, 2, 3]), [3, 1]),
        ([1, "b", None], [None, 1]),
        ((1, 2, 3), (3, 1)),
        (torch.tensor([1.0, 0.0, 3.0]).to_sparse(), [3.0, 1.0]),
    ],
    ids=["tensor", "array", "list", "tuple", "sparse"],
)
def test_some_samples_in_the_order_wanted(column: Any, found: Any) -> None:
    kept = pick(column, TWO_OF_THREE)
    if isinstance(kept, torch.Tensor) and kept.is_sparse:
        kept = kept.to_dense()
    assert (kept.tolist() if hasattr(kept, "tolist") else kept) == found


def test_sequences_packed_by_torch_stay_packed() -> None:
    packed = pack_sequence([torch.full((n,), float(n)) for n in (4, 2, 1)])
    assert own_size(packed) == 3
    kept, lengths = pad_packed_sequence(pick(packed, torch.tensor([2, 0])), batch_first=True)
    assert lengths.tolist() == [1, 4]
    assert kept[0, 0] == 1
    assert kept[1].tolist() == [4.0] * 4


def test_ragged_tensors_with_the_same_offsets_have_the_same_afterwards() -> None:
    one = ragged(2, 1, 3)
    other = one * 2
    shared: dict[int, torch.Tensor] = {}
    first, second = (pick(t, TWO_OF_THREE, shared=shared) for t in (one, other))
    assert [len(part) for part in first.unbind()] == [3, 2]
    assert (first + second).unbind()[0].unique().tolist() == [6.0]


def test_what_does_not_say_how_many_it_holds() -> None:
    assert own_size(torch.tensor(3.0)) is None
    assert own_size("text") is None
    assert own_size(np.zeros((4, 2))) == 4


@pytest.mark.parametrize(
    ("leaf", "reason"),
    [
        ({1, 2, 3}, "is a set of 3 entries"),
        (pack_sequence([torch.ones(2)]), "is a PackedSequence of 1 sequences"),
    ],
    ids=["set", "packed"],
)
def test_what_cannot_be_divided_says_why(leaf: Any, reason: str) -> None:

    found = indivisible(leaf, 3)
    assert found is not None
    assert re.search(reason, found)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_a_layout_that_cannot_be_indexed_names_one_that_can() -> None:
    found = indivisible(torch.eye(3).to_sparse_csr(), 3)
    assert found is not None
    assert "layout torch.sparse_csr" in found
    assert "use .to_sparse_coo()" in found


def test_what_can_hold_no_samples_goes_along() -> None:
    for leaf in ("text", 3, 2.5, None, len, int, torch.zeros(3), {1, 2}):
        assert indivisible(leaf, 3) is None


def test_an_object_with_tensors_inside_does_not_go_along() -> None:
    class Box:
        def __init__(self) -> None:
            self.x = torch.zeros(9)

    assert indivisible(Box(), 3) == "is a Box, which holds tensors where they cannot be divided"
