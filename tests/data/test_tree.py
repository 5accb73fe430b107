from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from sifting.data.tree import describe, index_on, shallow_copy, to_device

META = torch.device("meta")


def test_what_is_there_already_is_the_same_object() -> None:
    batch = {"x": torch.arange(4), "packed": pack_sequence([torch.zeros(2)])}
    assert to_device(batch, torch.device("cpu")) is batch


def test_everything_with_tensors_moves_and_nothing_else_changes() -> None:
    class Graphs:
        num_graphs = 1

        def __init__(self) -> None:
            self.x = torch.zeros(2)

        def to(self, device: torch.device) -> Graphs:
            self.x = self.x.to(device)  # graphs move in place
            return self

    batch = {"deep": ([torch.zeros(2)], "text"), "graphs": Graphs(), "n": 3}
    moved = to_device(batch, META)
    assert moved["deep"][0][0].device == moved["graphs"].x.device == META
    assert (moved["deep"][1], moved["n"]) == ("text", 3)
    assert batch["graphs"].x.device == batch["deep"][0][0].device == torch.device("cpu")


def test_the_lengths_of_a_packed_sequence_stay_where_they_are_needed() -> None:
    packed = pack_sequence([torch.zeros(3, 2), torch.zeros(1, 2)])
    assert to_device({"x": packed}, META)["x"].data.device == META
    assert to_device({"x": packed}, META)["x"].batch_sizes.device == torch.device("cpu")


def test_a_host_that_hands_indices_to_a_device_does_not_wait_for_it() -> None:
    asked = []

    class Indices(Tensor):
        def to(self, device: Any, **given: Any) -> Tensor:  # type: ignore[override]
            asked.append((device.type, given["non_blocking"]))
            return self

    rows_K = torch.tensor([1, 0]).as_subclass(Indices)
    index_on(rows_K, torch.zeros(2, device=META))
    index_on(rows_K, torch.zeros(2))  # there they are read at once
    assert asked == [("meta", True), ("cpu", False)]


def test_a_shallow_copy_is_deep_in_containers_and_shares_tensors() -> None:
    batch = {"x": torch.zeros(2), "deep": [torch.zeros(1), {"y": 3}]}
    kept = shallow_copy(batch)
    batch["deep"][1].clear()
    batch["deep"].pop()
    assert kept["x"] is batch["x"]
    assert kept["deep"][1] == {"y": 3}


def test_long_batches_are_described_in_one_line() -> None:
    batch = {f"x{i}": torch.zeros(2, i) for i in range(20)}
    assert describe(batch).endswith("['x11'] (2, 11), and 8 more")
    assert describe([torch.zeros(3)] * 9) == "list of 9 of (3,)"
