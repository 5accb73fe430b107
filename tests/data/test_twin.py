from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from sifting import Sifter
from sifting.data.twin import IndexSampler, draws_by_index, twin_of
from tests.helpers.loaders import Counted, make_loader, model, seed_everything, streams, walk


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


def pids(loader: Any) -> list[int]:
    return [process.pid for process in loader._iterator._workers]


def test_workers_that_live_on_do_and_are_the_loaders_own() -> None:
    loader = make_loader("shuffled", Counted(), num_workers=1, persistent_workers=True)
    sifter = Sifter(model(), exit="last", score="loss", keep=0.5)
    found = []
    for batches in (sifter(loader), sifter(loader), loader, sifter(loader)):
        walk(batches, loader, sifter.model)
        found.append(pids(loader))
    assert all(one == found[0] for one in found)


def test_epochs_with_and_without_a_sifter_take_turns() -> None:
    """Workers that live on continue with their streams, whoever iterates the loader."""
    options: Any = {"num_workers": 2, "persistent_workers": True}
    found = []
    for turns in ((False, False, False, False), (False, True, False, True)):
        loader, net = make_loader("shuffled", Counted(), **options), model()
        sifter = Sifter(net, exit="last", score="loss", warmup_steps=99)
        seed_everything()
        epochs = [walk(sifter(loader) if sifts else loader, loader, net) for sifts in turns]
        found.append((epochs, streams()))
    assert found[0] == found[1]


def test_an_epoch_that_is_left_leaves_the_loader_its_own_order() -> None:
    loader = make_loader("ordered", Counted(), num_workers=1, persistent_workers=True)
    sifter = Sifter(model(), exit="last", score="loss", keep=0.5)
    walk(sifter(loader), loader, sifter.model, stop=2)
    rows = [int(row[0]) for batch in walk(loader, loader, sifter.model) for row in batch]
    assert rows == list(range(37))
