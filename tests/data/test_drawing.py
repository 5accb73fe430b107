from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from sifting import MemoryExit, Sifter
from sifting.data.drawing import IndexSource
from tests.helpers.loaders import Counted


def test_an_order_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"in_order=False.*draws='batch'"):
        IndexSource(DataLoader(Counted(), 4, num_workers=1, in_order=False), whole=True)


def test_how_many_steps_a_pass_has_is_said_where_it_can_be() -> None:
    source = IndexSource(DataLoader(Counted(), 4), whole=False)
    assert source.steps_of_a_pass(lambda step, size: 2 * size) == 5  # 37 candidates, 8 a step
    source = IndexSource(DataLoader(Counted(), batch_sampler=[[1, 2], [3]]), whole=False)
    with pytest.raises(TypeError, match="how many samples a list gives cannot be determined"):
        source.steps_of_a_pass(lambda step, size: size)


Sample = tuple[torch.Tensor, int]
SAMPLES: list[Sample] = [(torch.full((4,), float(i)), i % 3) for i in range(48)]


def stacked(samples: list[Sample]) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.stack([x for x, _ in samples]), torch.tensor([y for _, y in samples])


def without_broken(samples: list[Sample]) -> Any:
    return stacked([(x, y) for x, y in samples if int(x[0]) % 7])


def two_crops(samples: list[Sample]) -> Any:
    return stacked([sample for sample in samples for _ in range(2)])


def one_row(samples: list[Sample]) -> Any:
    tokens = torch.cat([x.long() for x, _ in samples])[None]
    return {"input_ids": tokens, "labels": tokens % 3}


@pytest.mark.parametrize(("collate", "trained"), [(without_broken, 7), (two_crops, 16)])
@pytest.mark.parametrize("exit", ["last", "tuned"])
def test_a_collate_function_may_change_the_number_of_samples(
    collate: Any, trained: int, exit: str
) -> None:
    """Of the 14 or 32 that it makes of 16, half is kept; which is which is not known any more."""
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3))
    sifter = Sifter(net, exit=exit, keep=0.5)
    for x, y in sifter(DataLoader(SAMPLES, 8, collate_fn=collate)):
        assert len(x) == trained
        assert (x[:, 0].long() % 3 == y).all()
        assert sifter.observer.current is not None
        assert sifter.observer.current.ids is None
        torch.nn.functional.cross_entropy(net(x), y).backward()
    assert sifter.stats().candidates_seen == sum(
        len(collate(SAMPLES[i : i + 16])[0]) for i in (0, 16, 32) * 2
    )


def test_a_memory_must_know_which_sample_is_which() -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 3))
    sifter = Sifter(net, exit=MemoryExit(), keep=0.5)
    with pytest.raises(ValueError, match=r"makes \d samples of the \d+ .* draws='batch' and ids="):
        for x, y in sifter(DataLoader(SAMPLES, 8, collate_fn=without_broken)):
            torch.nn.functional.cross_entropy(net(x), y).backward()


def test_samples_joined_into_one_row_leave_nothing_to_choose() -> None:
    class Tokens(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(48, 3)

        def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
            return self.table(input_ids)  # type: ignore[no-any-return]

    sifter = Sifter(Tokens(), exit="last", keep=0.5)
    message = r"makes 1 sample of the 16 candidates .*position_ids that restart"
    with pytest.raises(ValueError, match=message):
        next(iter(sifter(DataLoader(SAMPLES, 8, collate_fn=one_row))))
