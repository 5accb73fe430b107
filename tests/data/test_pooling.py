from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from sifting import MemoryExit, Sifter
from sifting.data.pooling import PoolSource
from sifting.rng import RandomState
from tests.helpers.loaders import model, through_a_file


class Stream(IterableDataset[Any]):
    """Numbered samples; the last column is drawn at random when a sample is read."""

    def __iter__(self) -> Iterator[Any]:
        for i in range(22):
            yield torch.cat([torch.full((4,), float(i)), torch.rand(1)]), torch.tensor(i % 3)


def walk(batches: Any, stop: int | None = None) -> list[Any]:
    found = []
    for x, y in batches:
        torch.rand(2)
        found.append(torch.cat([x, y[:, None]], dim=1).tolist())
        if len(found) == stop:
            break
    return found


def sifter(**options: Any) -> Sifter:
    return Sifter(model(), **{"exit": "last", "score": "loss", "audit_every": 0, **options})


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_not_sifted_is_the_plain_loop_bit_for_bit(workers: int) -> None:
    options: Any = {"batch_size": 4, "num_workers": workers, "persistent_workers": workers > 0}
    loader = DataLoader(Stream(), **options)
    torch.manual_seed(3)
    want = [walk(loader) for _ in range(2)], torch.get_rng_state().tolist()
    for setting in ({"keep": 1.0}, {"warmup_steps": 99}):
        loader, own = DataLoader(Stream(), **options), sifter(**setting)
        torch.manual_seed(3)
        assert ([walk(own(loader)) for _ in range(2)], torch.get_rng_state().tolist()) == want


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_has_the_plain_number_of_steps(workers: int) -> None:
    options: Any = {"num_workers": workers, "persistent_workers": workers > 0}
    loader = DataLoader(Stream(), 4, **options)
    sizes = [len(batch) for batch in walk(loader)]
    for keep in (0.5, 0.3):
        own = sifter(keep=keep)
        assert [len(batch) for batch in walk(own(loader))] == sizes
        assert own.stats().candidates_seen == sum(int(-(-size // keep)) for size in sizes)


def test_a_generator_runs_once() -> None:
    batches = (batch for batch in DataLoader(Stream(), 4))
    found = walk(sifter(keep=0.5)(batches))
    # 22 candidates are not enough for 22 of 44: what there is makes two whole steps and a part
    assert sum(map(len, found)) == 11


@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_resumed_epoch_equals_the_whole_one(stop: int) -> None:
    own = sifter(keep=0.4)
    torch.manual_seed(3)
    whole = walk(own(DataLoader(Stream(), 4)))
    own = sifter(keep=0.4)
    torch.manual_seed(3)
    begun = walk(own(DataLoader(Stream(), 4)), stop)
    state, now = through_a_file(own), RandomState.now()
    own = sifter(keep=0.4)
    own.load_state_dict(state)
    now.restore()
    assert begun + walk(own(DataLoader(Stream(), 4))) == whole


def test_ids_of_any_kind_are_found_in_the_batch() -> None:
    data = [
        {"x": torch.randn(2, 5), "y": torch.tensor([0, 1]), "name": [f"{n}a", f"{n}b"]}
        for n in range(3)
    ]
    own = sifter(
        exit=MemoryExit(),
        ids="name",
        forward=lambda net, batch: net(batch["x"]),
        labels=lambda batch: batch["y"],
    )
    for batch in own(data):
        own.model(batch["x"])
    assert set(own.exit.state_dict()["keys"]) <= {f"{n}{s}" for n in range(3) for s in "ab"}
    assert own.exit.score_ids(["0a", "2b"]).shape == (2,)


def test_the_length_of_a_pass_is_told_where_it_can_be() -> None:
    batches = [torch.zeros(4), torch.zeros(4), torch.zeros(2)]
    source = PoolSource(batches, whole=False, pad=None)
    assert source.steps_of_a_pass(lambda step, size: 2 * size) == 2
    with pytest.raises(TypeError, match="sizes of a DataLoader's batches cannot be told"):
        PoolSource(DataLoader(Stream(), 4), whole=False, pad=None).steps_of_a_pass(max)
