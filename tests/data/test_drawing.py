from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from sifting import Sifter
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
