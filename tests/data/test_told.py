from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sifting import Sifter
from sifting.data.samples import Samples
from sifting.data.told import Told


def test_parts_and_last_batches_hold_fewer() -> None:
    told = Told(16)
    assert told.count({"x": torch.zeros(16, 8), "mask": torch.ones(10, 10)}) == 16
    assert told.count({"x": torch.zeros(3, 8), "mask": torch.ones(10, 10)}) == 3
    assert told.count({"x": torch.zeros(0, 8), "mask": torch.ones(10, 10)}) == 0


def test_what_had_the_number_by_chance_is_not_counted() -> None:
    told = Told(16)
    assert told.count({"x": torch.zeros(16, 8), "mask": torch.ones(16, 16)}) == 16
    assert told.count({"x": torch.zeros(5, 8), "mask": torch.ones(16, 16)}) == 5
    assert told.count({"x": torch.zeros(16, 8), "mask": torch.ones(3, 3)}) == 16


def test_members_that_part_are_refused() -> None:
    told = Told(4)
    told.count({"x": torch.zeros(4, 8), "y": torch.zeros(4)})
    with pytest.raises(ValueError, match=r"\['x'\] \(3, 8\), \['y'\] \(2,\).*batch_size='…'"):
        told.count({"x": torch.zeros(3, 8), "y": torch.zeros(2)})


def test_a_number_that_is_not_there_is_refused() -> None:
    said = r"batch_size=7, but no member.*\(16, 8\).*number of candidates.*lambda batch"
    with pytest.raises(ValueError, match=said):
        Told(7).count({"x": torch.zeros(16, 8)})


@pytest.mark.parametrize(
    ("whole", "part"),
    [
        ((torch.zeros(2, 3), torch.zeros(2)), (torch.zeros(1, 3), torch.zeros(1))),
        ((torch.zeros(2, 3), torch.zeros(2, 3)), (torch.zeros(1, 3), torch.zeros(1, 3))),
        ([(torch.zeros(2), 3), (torch.zeros(5), 1)], [(torch.zeros(2), 3)]),
        ([torch.zeros(7), torch.zeros(2)], [torch.zeros(2)]),
        ({"text": ["a", "b"], "split": "train"}, {"text": ["a"], "split": "train"}),
    ],
)
def test_as_many_members_as_samples(whole: Any, part: Any) -> None:
    told = Told(2)
    assert told.count(whole) == 2
    assert told.count(part) == 1


@pytest.mark.parametrize("time", [11, 32])
def test_samples_along_another_dimension_are_counted_where_the_user_takes_them(time: int) -> None:
    samples = Samples(32, lambda batch, indices: tuple(member[:, indices] for member in batch))
    batch = (torch.zeros(time, 32), torch.zeros(time, 32))
    assert samples.size(batch) == 32
    part = samples.take(batch, torch.tensor([4, 9, 1]))
    assert samples.size(part) == 3
    assert samples.size(samples.take(part, torch.tensor([0]))) == 1


def test_a_take_that_takes_others_is_refused_also_with_a_number() -> None:
    samples = Samples(8, lambda batch, indices: batch[:5])
    samples.size(torch.zeros(8))
    with pytest.raises(ValueError, match="batch of 5 for 3 indices"):
        samples.take(torch.zeros(8), torch.tensor([4, 9, 1]))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        assert mask.shape == (10, 10)
        logits: Tensor = self.last(F.relu(self.first(x)))
        return logits


@pytest.mark.parametrize("exit", ["last", "tuned"])
def test_a_sifter_takes_a_number(exit: str) -> None:
    """Also where it tries a batch of few samples first, and where the last batch is smaller."""
    data = [{"x": torch.randn(8), "labels": i % 3} for i in range(40)]

    def collate(samples: list[Any]) -> dict[str, Tensor]:
        x = torch.stack([sample["x"] for sample in samples])
        labels = torch.tensor([sample["labels"] for sample in samples])
        return {"x": x, "labels": labels, "mask": torch.ones(10, 10)}

    model = Net()
    sifter = Sifter(model, exit=exit, score="loss", batch_size=16, draws="batch")
    seen = 0
    for batch in sifter(DataLoader(data, batch_size=16, collate_fn=collate)):
        assert len(batch["x"]) == len(batch["labels"])
        loss = F.cross_entropy(model(batch["x"], batch["mask"]), batch["labels"])
        loss.backward()
        seen += len(batch["x"])
    assert 16 <= seen <= 24
