from __future__ import annotations

import multiprocessing
import os
import signal
from typing import Any

import numpy as np
import pytest
import torch

from sifting.recipes.batches import TextBatches, uniforms
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


def epoch(loader: TextBatches) -> list[dict[str, torch.Tensor]]:
    return list(loader)


def equal(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        x.keys() == y.keys() and all(torch.equal(x[k], y[k]) for k in x)
        for x, y in zip(a, b, strict=True)
    )


def test_workers_change_nothing(pairs: SentencePairs) -> None:
    def two(workers: int) -> list[Any]:
        loader = TextBatches(pairs, 4, seed=3, workers=workers)
        before = torch.get_rng_state()
        epochs = [epoch(loader), epoch(loader)]
        assert torch.equal(before, torch.get_rng_state())
        return epochs

    here = two(0)
    assert not equal(here[0], here[1])
    for workers in (1, 2):
        assert all(equal(a, b) for a, b in zip(here, two(workers), strict=True))
    assert not equal(here[0], epoch(TextBatches(pairs, 4, seed=4)))


@pytest.mark.parametrize("workers", [0, 2])
def test_what_is_skipped_is_as_if_it_had_been_made(pairs: SentencePairs, workers: int) -> None:
    whole = TextBatches(pairs, 4, seed=3)
    first, second = epoch(whole), epoch(whole)
    loader = TextBatches(pairs, 4, seed=3, workers=workers)
    loader.fast_forward(5)
    assert equal(epoch(loader), first[5:])
    assert equal(epoch(loader), second)  # only one epoch is cut short
    loader.fast_forward(len(loader))
    assert epoch(loader) == []


def test_a_signal_to_all_processes_is_not_the_end_of_the_workers(pairs: SentencePairs) -> None:
    whole = epoch(TextBatches(pairs, 4, seed=3))
    found = []
    for batch in TextBatches(pairs, 4, seed=3, workers=1):
        found.append(batch)
        if len(found) == 1:
            (worker,) = multiprocessing.active_children()
            for number in (signal.SIGINT, signal.SIGTERM):
                os.kill(worker.pid or 0, number)
    assert equal(found, whole)


def test_skipping_makes_nothing(pairs: SentencePairs, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    original = SentencePairs.batch

    def counting(self: SentencePairs, indices_B: Any, *, seed: int) -> Any:
        made.append(len(indices_B))
        return original(self, indices_B, seed=seed)

    monkeypatch.setattr(SentencePairs, "batch", counting)
    loader = TextBatches(pairs, 4, seed=3)
    loader.fast_forward(len(loader) - 1)
    assert len(epoch(loader)) == len(made) == 1


def test_ranks_share_every_batch(pairs: SentencePairs) -> None:
    whole = epoch(TextBatches(pairs, 6, seed=1))
    ranks = [epoch(TextBatches(pairs, 2, seed=1, rank=r, world=3)) for r in range(3)]
    joined = [
        {k: torch.cat([rank[b][k] for rank in ranks]) for k in whole[0]} for b in range(len(whole))
    ]
    assert equal(whole, joined)


def test_an_epoch_has_every_example_once_and_says_which(pairs: SentencePairs) -> None:
    loader = TextBatches(pairs, 4, seed=0)
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
        TextBatches(pairs, seed=0, **options)
    with pytest.raises(DataError, match="cannot skip 999 batches"):
        TextBatches(pairs, 4, seed=0).fast_forward(999)
