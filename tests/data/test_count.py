"""How many samples a batch holds, read from its labels or its structure."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from sifting.data.count import (
    alike,
    has_scalars,
    possible,
    raw_samples,
    size_of_labels,
    sizes_of_structure,
)

T = torch.zeros


@pytest.mark.parametrize(
    ("labels", "sizes"),
    [
        ({"labels": T(4, 7)}, {4}),
        ({"labels": [1, 2, 3]}, {3}),
        ({"labels": T(4), "span_labels": T(9)}, {4}),
        ({"a_labels": T(4), "b_labels": T(9)}, {4, 9}),
        ({"labels": torch.tensor(1.0)}, set()),
        ({}, set()),
    ],
)
def test_labels_say_how_many_there_are(labels: dict[str, Any], sizes: set[int]) -> None:
    assert size_of_labels(labels) == sizes


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [
        ((T(4, 8), T(4)), {4}),
        ({"x": T(4, 8), "lr": 0.1}, {4}),
        ([T(4, 8)] * 3, {3, 4}),
        ([T(5, 8)], {5}),
        ({"names": ["a", "b"]}, {2}),
        (T(6), {6}),
        ({"x": T(4), "y": T(5)}, {4, 5}),
        ((pack_sequence([T(3), T(2), T(1)]),) * 2, {3}),  # none of the two is a sample
    ],
)
def test_structure_says_what_it_can(batch: Any, sizes: set[int]) -> None:
    assert sizes_of_structure(batch) == sizes


def test_lists_of_samples_are_told_from_members() -> None:
    assert raw_samples([{"x": T(3), "y": 1}, {"x": T(3), "y": 2}])
    assert raw_samples([{"x": T(3)}, {"x": T(5)}]), "sizes that no batch could have"
    assert not raw_samples([T(2, 8), T(2)])
    assert not raw_samples([{"x": T(3)}, {"labels": T(3)}])
    assert not raw_samples([])
    assert not raw_samples({"x": T(3)})


def test_entries_of_one_kind_are_alike() -> None:
    assert alike([(T(3), 1), (T(5), 2)])
    assert not alike([T(3), T(3, 2)])
    assert not alike([T(3), T(3).long()])
    assert not alike(["a", 1])
    assert alike([1, 2.5, True]), "numbers are numbers"


def test_a_number_of_its_own_marks_a_sample() -> None:
    assert has_scalars([(T(3), 1), (T(3), 2)])
    assert has_scalars([{"b": "x", "a": T(2)}, {"a": T(2), "b": "y"}]), "in whatever order"
    assert not has_scalars([(T(3), T(2)), (T(3), T(2))])
    assert not has_scalars([["a", "b"], ["c", "d"]]), "it may be columns of texts"


def test_every_tensor_has_to_fit() -> None:
    assert possible({"x": T(4, 2), "y": T(4)}) == {4}
    assert possible({"x": T(4), "y": T(5)}) == set()
    assert possible({"a": "text"}) is None
