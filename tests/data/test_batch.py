from __future__ import annotations

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import BatchEncoding

from sifting.data.batch import batch_size, split, take, to_device

Point = namedtuple("Point", "x y")


@dataclasses.dataclass(frozen=True)
class Sample:
    pixels: torch.Tensor
    labels: torch.Tensor
    names: list[str]
    source: str = "camera"
    checked: int = dataclasses.field(init=False, default=7)

    def __post_init__(self) -> None:
        if len(self.names) != 4:
            raise ValueError("runs only on whole batches")


def leaf(size: int) -> st.SearchStrategy[Any]:
    return st.sampled_from(
        [
            torch.arange(size),
            torch.arange(size * 3).reshape(size, 3),
            np.arange(size * 2).reshape(size, 2),
            [f"sample {i}" for i in range(size)],
        ]
    )


def trees(size: int) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaf(size),
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from("abcd"), inner, min_size=1, max_size=3),
            st.tuples(inner, inner),
            st.builds(Point, inner, inner),
            st.dictionaries(st.sampled_from("xyz"), inner, min_size=1).map(OrderedDict),
        ),
        max_leaves=5,
    )


def rows(node: Any) -> list[list[Any]]:
    """All leaves as plain lists, in order: what a selection must commute with."""
    if isinstance(node, torch.Tensor | np.ndarray):
        return [node.tolist()]
    if isinstance(node, dict):
        return [r for value in node.values() for r in rows(value)]
    if isinstance(node, list):
        return [node]
    return [r for value in node for r in rows(value)]


@given(st.data())
def test_take_picks_the_same_samples_from_every_leaf_and_keeps_the_type(
    data: st.DataObject,
) -> None:
    size = data.draw(st.integers(4, 7))  # above every container's length
    batch = data.draw(trees(size))
    chosen = data.draw(st.lists(st.integers(0, size - 1), min_size=1, unique=True))
    picked = take(batch, torch.tensor(chosen), size=size)
    assert type(picked) is type(batch)
    assert rows(picked) == [[row[i] for i in chosen] for row in rows(batch)]


@given(st.data())
def test_split_loses_and_repeats_nothing(data: st.DataObject) -> None:
    size = data.draw(st.integers(4, 7))
    batch = {"x": torch.arange(size), "deep": (torch.arange(size) + 100, ["s"] * size)}
    pieces = split(batch, data.draw(st.integers(1, size + 2)))
    assert torch.cat([piece["x"] for piece in pieces]).tolist() == list(range(size))
    assert torch.cat([piece["deep"][0] for piece in pieces]).tolist() == list(
        range(100, 100 + size)
    )


def test_a_whole_batch_is_the_same_object() -> None:
    batch = {"x": torch.arange(4)}
    assert split(batch, 4)[0] is batch
    assert to_device(batch, torch.device("cpu")) is batch


def test_dataclasses_keep_their_fields_without_running_their_init() -> None:
    batch = Sample(torch.arange(8).reshape(4, 2), torch.arange(4), ["a", "b", "c", "d"])
    picked = take(batch, torch.tensor([3, 0]))
    assert isinstance(picked, Sample)
    assert picked.labels.tolist() == [3, 0]
    assert (picked.names, picked.source, picked.checked) == (["d", "a"], "camera", 7)
    assert batch.names == ["a", "b", "c", "d"]


def test_batch_encoding_stays_one() -> None:
    batch = BatchEncoding({"input_ids": torch.arange(12).reshape(4, 3), "labels": torch.arange(4)})
    picked = take(batch, torch.tensor([1, 2]))
    assert isinstance(picked, BatchEncoding)
    assert picked["labels"].tolist() == [1, 2]
    assert picked.input_ids.shape == (2, 3)
    assert len(batch["labels"]) == 4


def test_what_is_not_per_sample_is_carried_along() -> None:
    table = torch.zeros(9, 9)
    batch = {"x": torch.arange(4), "y": torch.arange(4), "table": table, "lr": 0.1, "none": None}
    picked = take(batch, torch.tensor([2]))
    assert picked["table"] is table
    assert (picked["lr"], picked["none"]) == (0.1, None)


def test_a_list_of_tensors_of_differing_sizes_is_one_entry_a_sample() -> None:
    batch = {
        "boxes": [torch.zeros(n, 4) for n in (2, 5, 3)],
        "y": torch.arange(3),
        "z": torch.ones(3),
    }
    picked = take(batch, torch.tensor([0, 1]))
    assert [len(boxes) for boxes in picked["boxes"]] == [2, 5]


def test_the_size_is_what_most_tensors_share() -> None:
    assert batch_size({"mask": torch.zeros(9, 9), "x": torch.zeros(4, 2), "y": torch.zeros(4)}) == 4
    assert batch_size([["a", "b", "c"]]) == 3


@pytest.mark.parametrize("batch", [{}, "text", {"a": 1.0}, torch.tensor(3.0)])
def test_a_batch_without_samples_is_refused(batch: Any) -> None:
    with pytest.raises(ValueError, match="cannot tell how many samples"):
        batch_size(batch)


@pytest.mark.parametrize(
    "batch",
    [
        (torch.randn(3, 8), torch.arange(3), ["a", "b", "c"]),
        (torch.randn(3, 8), torch.arange(3), 0.5),
        (torch.randn(3, 8), torch.arange(3), torch.zeros(9, 9)),
    ],
    ids=["strings", "number", "table"],
)
def test_a_tuple_with_as_many_members_as_samples_is_still_structure(batch: tuple[Any, ...]) -> None:
    picked = take(batch, torch.tensor([0, 2]))
    assert picked[0].shape == (2, 8)
    assert picked[1].tolist() == [0, 2]
    assert len(picked) == 3


def test_detection_batches_are_lists_of_pictures_and_of_targets() -> None:
    pictures = [torch.full((3, 4 + i, 5), float(i)) for i in range(8)]
    targets = [{"boxes": torch.zeros(i, 4), "labels": torch.zeros(i)} for i in range(8)]
    assert batch_size((pictures, targets)) == 8
    images, boxes = take((pictures, targets), torch.tensor([6, 1]))
    assert [float(image.mean()) for image in images] == [6, 1]
    assert [len(target["boxes"]) for target in boxes] == [6, 1]


def test_nested_tensors_are_selected() -> None:
    ragged = torch.nested.nested_tensor([torch.ones(n, 2) for n in (1, 2, 3)], layout=torch.jagged)
    picked = take({"x": ragged, "y": torch.arange(3)}, torch.tensor([2, 0]))
    assert [len(sample) for sample in picked["x"].unbind()] == [3, 1]
