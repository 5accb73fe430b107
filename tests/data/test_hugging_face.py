"""Streams of Hugging Face's `datasets`, as users give them to loaders."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from sifting import Sifter
from sifting.data.hugging_face import is_stream, loses_samples
from tests.helpers.loaders import model, through_a_file

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings(
    "ignore:'set_vital' is deprecated:UserWarning"
)  # torchdata's


def sifter(**options: Any) -> Sifter:
    return Sifter(model(), **{"exit": "last", "score": "loss", "audit_every": 0, **options})


def numbers(batches: Any, stop: int | None = None) -> list[list[int]]:
    found = []
    for x, _ in batches:
        found.append([int(row[0]) for row in x])
        if len(found) == stop:
            break
    return found


def stream(*, buffer: int | None = None) -> Any:
    table = {"x": [[float(i)] * 5 for i in range(22)], "y": [i % 3 for i in range(22)]}
    made = datasets.Dataset.from_dict(table).to_iterable_dataset(num_shards=4)
    return made if buffer is None else made.shuffle(seed=3, buffer_size=buffer)


def streamed(kind: Any = DataLoader, *, buffer: int | None = None, **options: Any) -> Any:
    """A loader over a stream in shards."""
    data = stream(buffer=buffer).with_format("torch")
    return kind(data, batch_size=4, collate_fn=as_pair, **options)


def as_pair(rows: list[dict[str, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([row["x"] for row in rows]), torch.stack([row["y"] for row in rows])


def cut_off(fresh: Any, stop: int, **options: Any) -> tuple[list[Any], list[Any]]:
    """Two epochs, whole, and cut off after a step of the first."""
    loader, own = fresh(), sifter(**options)
    whole = [numbers(own(loader)) for _ in range(2)]
    loader, own = fresh(), sifter(**options)
    begun = numbers(own(loader), stop)
    state = through_a_file(own)
    loader, own = fresh(), sifter(**options)
    own.load_state_dict(state)
    return whole, [begun + numbers(own(loader)), numbers(own(loader))]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_of_datasets_is_sifted(workers: int) -> None:
    plain = numbers(streamed(num_workers=workers))
    own = sifter(keep=1.0)
    assert numbers(own(streamed(num_workers=workers))) == plain
    own = sifter(keep=0.3)
    found = numbers(own(streamed(num_workers=workers)))
    assert [len(batch) for batch in found] == [len(batch) for batch in plain]
    if not workers:
        whole, again = cut_off(streamed, 3, keep=0.3)
        assert again == whole


@pytest.mark.parametrize("stop", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("options", [{"keep": 0.5}, {"keep": 0.4}, {"draws": "batch"}], ids=str)
@pytest.mark.parametrize("buffer", [None, 6])
def test_one_that_has_a_state_of_its_own_resumes_and_begins_at_the_beginning_after(
    stop: int, options: dict[str, Any], buffer: int | None
) -> None:
    """What a shuffle's buffer held is not in that state, so that such a stream is read again."""
    loader = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    whole, again = cut_off(lambda: streamed(loader, buffer=buffer), stop, **options)
    assert again == whole


def test_a_buffer_is_found_wherever_it_is() -> None:
    plain, shuffled = stream(), stream(buffer=6)
    assert is_stream(plain)
    assert not loses_samples(plain.map(lambda row: row))
    assert not loses_samples([1, 2])
    for other in (
        shuffled,
        shuffled.map(lambda row: row).take(5).with_format("torch"),
        datasets.interleave_datasets([plain, shuffled]),
        datasets.concatenate_datasets([plain, shuffled.skip(2)]),
    ):
        assert loses_samples(other)
