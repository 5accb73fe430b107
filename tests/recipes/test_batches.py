from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from sifting import MemoryExit, Sifter
from sifting.recipes.batches import epoch_loader, uniforms
from sifting.recipes.text.pairs import SentencePairs
from sifting.training.recipe import DataError
from tests.helpers.text import numbered, wordpiece

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),  # that it has threads
]


@pytest.fixture(scope="module")
def pairs() -> SentencePairs:
    tokens = numbered([[5] * 40] * 6)
    return SentencePairs(tokens, np.arange(6), wordpiece(300), length=32)


def epoch(loader: DataLoader[Any]) -> list[dict[str, torch.Tensor]]:
    return list(loader)


def equal(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)
        for x, y in zip(a, b, strict=True)
    )


def test_workers_change_nothing(pairs: SentencePairs) -> None:
    def two(workers: int) -> list[Any]:
        loader = epoch_loader(pairs, 4, seed=3, workers=workers)
        before = torch.get_rng_state()
        epochs = [epoch(loader), epoch(loader)]
        assert torch.equal(before, torch.get_rng_state())
        return epochs

    here = two(0)
    assert not equal(here[0], here[1])
    for workers in (1, 2):
        assert all(equal(a, b) for a, b in zip(here, two(workers), strict=True))
    assert not equal(here[0], epoch(epoch_loader(pairs, 4, seed=4)))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_is_entered_anywhere_and_makes_nothing_of_what_was_before(
    pairs: SentencePairs, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    original = SentencePairs.batch

    def counting(self: SentencePairs, indices_B: Any, *, seed: int) -> Any:
        made.append(len(indices_B))
        return original(self, indices_B, seed=seed)

    whole = epoch_loader(pairs, 4, seed=3)
    first, second = epoch(whole), epoch(whole)
    sifter = Sifter(torch.nn.Linear(2, 2), keep=1.0)
    for passed, _ in enumerate(sifter(epoch_loader(pairs, 4, seed=3, workers=workers)), start=1):
        if passed == 5:
            break
    state = sifter.state_dict()
    monkeypatch.setattr(SentencePairs, "batch", counting)
    other = Sifter(torch.nn.Linear(2, 2), keep=1.0)
    other.load_state_dict(state)
    loader = epoch_loader(pairs, 4, seed=3, workers=workers)
    assert equal(list(other(loader)), first[5:])
    assert equal(list(other(loader)), second)
    if not workers:  # what workers make is not counted here
        assert len(made) == len(first) - 5 + len(second)


def test_candidates_of_two_epochs_are_those_of_each(pairs: SentencePairs) -> None:
    loader = epoch_loader(pairs, 4, seed=3)
    drawn = [[one for batch in loader.batch_sampler for one in batch] for _ in range(2)]
    (a, seed_a), (b, seed_b) = drawn[0][0], drawn[1][0]
    data: Any = loader.dataset
    mixed = data.__getitems__([(b, seed_b), (a, seed_a), (a, seed_b)])
    for row, (index, seed) in enumerate([(b, seed_b), (a, seed_a), (a, seed_b)]):
        alone = pairs.batch(np.array([index]), seed=seed)
        assert all(torch.equal(mixed[name][row], alone[name][0]) for name in alone)
    assert [data.sample_id(one) for one in (drawn[0][0], a)] == [a, a]


def test_memory_knows_an_example_from_epoch_to_epoch_and_reads_what_it_keeps(
    pairs: SentencePairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[int] = []
    original = SentencePairs.batch

    def noting(self: SentencePairs, indices_B: Any, *, seed: int) -> Any:
        read.extend(indices_B.tolist())
        return original(self, indices_B, seed=seed)

    model = torch.nn.Linear(32, 2)
    sifter = Sifter(
        model,
        exit=MemoryExit(revisit=0),
        keep=0.5,
        audit_every=0,
        explore=0,
        losses=lambda model, batch: batch["index"].float() + 0 * model.weight.sum(),
    )
    loader = epoch_loader(pairs, 4, seed=3)
    for batch in sifter(loader):
        sifter.observe(batch["index"].float())
    monkeypatch.setattr(SentencePairs, "batch", noting)
    for batch in sifter(loader):  # by now, each has been met
        sifter.observe(batch["index"].float())
    kept = read[-4 * len(loader) :]
    assert len(read) == 4 * len(loader)
    assert sum(kept) / len(kept) > 0.6 * len(pairs)  # the losses are the indices


def test_a_signal_to_all_processes_is_not_the_end_of_the_workers(pairs: SentencePairs) -> None:
    whole = epoch(epoch_loader(pairs, 4, seed=3))
    others, found = set(multiprocessing.active_children()), []
    for batch in epoch_loader(pairs, 4, seed=3, workers=1):
        found.append(batch)
        if len(found) == 1:
            (worker,) = set(multiprocessing.active_children()) - others
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(worker.pid or 0, number)
    assert equal(found, whole)


def test_ranks_share_every_batch(pairs: SentencePairs) -> None:
    whole = epoch(epoch_loader(pairs, 6, seed=1))
    ranks = [epoch(epoch_loader(pairs, 2, seed=1, rank=r, world=3)) for r in range(3)]
    joined = [
        {k: torch.cat([rank[b][k] for rank in ranks]) for k in whole[0]} for b in range(len(whole))
    ]
    assert equal(whole, joined)


def test_an_epoch_has_every_example_once_and_says_which(pairs: SentencePairs) -> None:
    loader = epoch_loader(pairs, 4, seed=0)
    seen = torch.cat([b["index"] for b in loader]).tolist()
    assert len(loader) == len(pairs) // 4
    assert len(set(seen)) == len(seen) == len(loader) * 4
    assert set(seen) <= set(range(len(pairs)))


def test_uniforms_are_uniform_and_independent() -> None:
    u = uniforms(np.arange(2000), 50, seed=7)
    assert u.min() >= 0
    assert u.max() < 1
    counts = np.histogram(u, bins=20, range=(0, 1))[0] / u.size
    assert np.abs(counts - 0.05).max() < 0.005
    for other in (
        uniforms(np.arange(2000), 50, seed=8),
        uniforms(np.arange(2000), 50, seed=7, stream=1),
        uniforms(np.arange(1, 2001), 50, seed=7),
    ):
        assert abs(np.corrcoef(u.ravel(), other.ravel())[0, 1]) < 0.02
    assert np.array_equal(uniforms(np.array([1999, 3]), 50, seed=7), u[[1999, 3]])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 500}, r"batches of 500 on 1 ranks from \d+ sequences"),
        ({"batch_size": 4, "rank": 2, "world": 2}, "rank=2 of world=2"),
        ({"batch_size": 4, "workers": -1}, "workers=-1"),
    ],
)
def test_what_cannot_be_is_refused(
    pairs: SentencePairs, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        epoch_loader(pairs, seed=0, kind="sequences", **options)
