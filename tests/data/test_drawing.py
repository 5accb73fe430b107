from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from sifting import MemoryExit, Sifter
from sifting.data.drawing import IndexSampler, IndexSource, draws_by_index, twin_of
from tests.helpers.loaders import Counted, ids, make_loader, model, walk


class Endless(DataLoader[Any]):
    """One iterator for all epochs, as some projects have it."""

    def __iter__(self) -> Any:
        if not hasattr(self, "own"):
            object.__setattr__(self, "own", super().__iter__())
        return self.own


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_what_is_drawn_from_by_index() -> None:
    data = Counted()
    assert draws_by_index(DataLoader(data, 4))
    for other in (
        [1, 2],
        DataLoader(Stream(), 2),
        DataLoader(data, batch_size=None),
        Endless(data, 4),
    ):
        assert not draws_by_index(other)


def test_a_twin_has_all_but_the_order() -> None:
    loader = make_loader("shuffled", Counted(), num_workers=1, timeout=30.0, prefetch_factor=3)
    twin = twin_of(loader, IndexSampler(loader.batch_sampler))
    for name in ("dataset", "collate_fn", "num_workers", "timeout", "prefetch_factor", "generator"):
        assert getattr(twin, name) is getattr(loader, name)
    assert len(twin) == len(loader)


def test_an_order_that_nobody_knows_is_refused() -> None:
    with pytest.raises(ValueError, match=r"in_order=False.*draws='batch'"):
        IndexSource(DataLoader(Counted(), 4, num_workers=1, in_order=False), whole=True)


def test_workers_that_live_on_do() -> None:
    loader = make_loader("shuffled", Counted(), num_workers=1, persistent_workers=True)
    sifter = Sifter(model(), exit="last", score="loss", keep=0.5)
    workers = []
    for _ in range(2):
        walk(sifter(loader), loader, sifter.model)
        (_, twin), *_ = sifter.cursor.twins.values()
        workers.append([process.pid for process in twin._iterator._workers])
    assert workers[0] == workers[1]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's call
@pytest.mark.parametrize("workers", [0, 1])
def test_a_stateful_loader_is_drawn_from_and_resumes(workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def fresh() -> tuple[Any, Sifter, Counted]:
        data = Counted()
        generator = torch.Generator().manual_seed(3)
        loader = stateful.StatefulDataLoader(
            data, 5, shuffle=True, generator=generator, num_workers=workers
        )
        return loader, Sifter(model(), exit="last", score="loss", keep=0.5), data

    loader, sifter, _ = fresh()
    assert draws_by_index(loader)
    torch.manual_seed(1)
    plain = ids(walk(loader, loader, sifter.model))
    loader, sifter, _ = fresh()
    sifter.schedule = sifter.chooser.schedule = Sifter(model(), exit="last", keep=1.0).schedule
    torch.manual_seed(1)
    assert ids(walk(sifter(loader), loader, sifter.model)) == plain

    loader, sifter, _ = fresh()
    whole = ids(walk(sifter(loader), loader, sifter.model))
    assert [len(batch) for batch in whole] == [len(batch) for batch in plain]
    loader, sifter, _ = fresh()
    begun = ids(walk(sifter(loader), loader, sifter.model, stop=3))
    state = sifter.state_dict()
    loader, sifter, data = fresh()
    sifter.load_state_dict(state)
    assert begun + ids(walk(sifter(loader), loader, sifter.model)) == whole
    if not workers:
        assert len(data.read) == sum(len(batch) for batch in whole[3:]) * 2


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
    message = r"makes 1 sample of the 16 candidates .*position_ids that begin anew"
    with pytest.raises(ValueError, match=message):
        next(iter(sifter(DataLoader(SAMPLES, 8, collate_fn=one_row))))
