"""`sifter(loader)` over loaders as they are."""

from __future__ import annotations

import math
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from sifting import MemoryExit, Sifter
from sifting.data.stateful import order_is_lost
from sifting.loader import SiftedLoader
from sifting.rng import RandomState
from tests.helpers.loaders import (
    KINDS,
    PERMUTED,
    Counted,
    ids,
    length_of,
    make_loader,
    model,
    seed_everything,
    streams,
    through_a_file,
    walk,
)
from tests.helpers.models import Net

try:
    from torchdata.stateful_dataloader import StatefulDataLoader
except ImportError:  # then there is one class of loaders less
    StatefulDataLoader = DataLoader

pytestmark = [
    pytest.mark.filterwarnings("ignore::sifting.SiftingWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata's
]

WAYS: dict[str, dict[str, Any]] = {
    "scored": {"exit": "last", "score": "loss"},
    "memory": {"exit": MemoryExit},
    "random": {"exit": 1, "policy": "random"},
}


def make_sifter(way: str, **options: Any) -> Sifter:
    chosen = dict(WAYS[way])
    if chosen["exit"] is MemoryExit:
        chosen["exit"] = MemoryExit()
    return Sifter(model(), **{"audit_every": 0, **chosen, **options})


def plainly(kind: str, epochs: int = 2, size: int = 5, **options: Any) -> tuple[Any, Any]:
    loader, net = make_loader(kind, Counted(), size, **options), model()
    seed_everything()
    return [walk(loader, loader, net, epoch=epoch) for epoch in range(epochs)], streams()


def sifted(sifter: Sifter, loader: DataLoader[Any], epochs: int = 2) -> Any:
    seed_everything()
    return [
        walk(sifter(loader), loader, sifter.model, epoch=epoch) for epoch in range(epochs)
    ], streams()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", [{"keep": 1.0}, {"warmup_steps": 99}], ids=str)
def test_what_is_not_sifted_is_the_plain_loop_bit_for_bit(
    kind: str, options: dict[str, Any]
) -> None:
    want = plainly(kind)
    for way in WAYS:
        assert sifted(make_sifter(way, **options), make_loader(kind, Counted())) == want


@pytest.mark.parametrize("kind", ["shuffled", "generator", "varying"])
@pytest.mark.parametrize("persistent", [False, True])
def test_so_it_is_with_workers(kind: str, persistent: bool) -> None:
    options: Any = {"num_workers": 2, "persistent_workers": persistent}
    want = plainly(kind, **options)
    found = sifted(make_sifter("scored", warmup_steps=99), make_loader(kind, Counted(), **options))
    assert found == want  # the random column too, which is drawn in the workers


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("keep", [0.5, 0.3, "changing"])
def test_every_step_trains_what_the_loader_would_have(kind: str, way: str, keep: Any) -> None:
    share = (lambda step: 0.3 + 0.7 * (step % 3 == 0)) if keep == "changing" else keep
    plain, _ = plainly(kind)
    data = Counted()
    loader, sifter = make_loader(kind, data), make_sifter(way, keep=share)
    assert len(sifter(loader)) == len(loader)
    found, _ = sifted(sifter, loader)
    sizes = [[len(batch) for batch in epoch] for epoch in plain]
    assert [[len(batch) for batch in epoch] for epoch in found] == sizes
    ratios = [share(step) if callable(share) else share for step in range(sifter.step)]
    drawn = [
        math.ceil(size / ratio - 1e-9)
        for size, ratio in zip(sum(sizes, []), ratios, strict=True)  # noqa: RUF017
    ]
    assert sifter.stats().candidates_seen == sum(drawn)
    if way == "scored":
        check_order(kind, data.read, ids(plain[0]), drawn[: len(sizes[0])])
    else:
        trained = [i for epoch in found for batch in ids(epoch) for i in batch]
        assert data.read == trained  # what is dropped is never read


def check_order(kind: str, read: list[int], plain: list[list[int]], drawn: list[int]) -> None:
    """Candidates come in the loader's own order, pass after pass."""
    first = [i for batch in plain for i in batch]
    if not first:  # fewer samples than a batch, and incomplete ones are left out
        assert not read
        return
    total = sum(drawn)
    assert read[: min(total, len(first))] == first[:total]
    for begin in range(len(first), total, len(first)):
        again = read[begin : min(begin + len(first), total)]
        if kind in PERMUTED:
            assert len(set(again)) == len(again)
            assert kind == "distributed" or set(again) <= set(first)  # each pass has its own share
        few = (
            12 if kind == "grouped" else 5
        )  # of which there are few orders, one of them drawn twice
        if kind not in ("ordered", "varying") and len(again) > few:
            assert again != first[: len(again)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_one_pass(kind: str, way: str) -> None:
    data = Counted()
    plain, _ = plainly(kind, epochs=1)
    first = [i for batch in ids(plain[0]) for i in batch]
    sifter = make_sifter(way, keep=0.4, epoch="pass")
    loader = make_loader(kind, data)
    if kind not in ("varying", "tensors"):
        assert len(sifter(loader)) == -(-len(first) // 13)
    found, _ = sifted(sifter, loader, epochs=1)
    assert sifter.stats().candidates_seen == len(first)
    if kind != "varying":
        sizes = [len(batch) for batch in found[0]]
        assert sizes[:-1] == [5] * (len(sizes) - 1)
        assert sizes[-1] == -(-5 * (len(first) - 13 * (len(sizes) - 1)) // 13)


def interrupted(kind: str, way: str, stop: int, *, epochs: int = 2, **options: Any) -> Any:
    """What is trained in all, where a run is cut off after a step and continues from a file."""
    sifting = options.pop("sifting", {})
    loader, sifter = make_loader(kind, Counted(), **options), make_sifter(way, **sifting)
    seed_everything()
    found: list[Any] = []
    for epoch in range(epochs):
        left = stop - sum(map(len, found))
        found.append(walk(sifter(loader), loader, sifter.model, epoch=epoch, stop=left))
        if sum(map(len, found)) == stop:
            break
    state, now = through_a_file(sifter), RandomState.now()
    data = Counted()
    loader, sifter = make_loader(kind, data, **options), make_sifter(way, **sifting)
    seed_everything(99)
    sifter.load_state_dict(state)
    now.restore()
    epoch = len(found) - 1
    rest = walk(sifter(loader), loader, sifter.model, epoch=epoch)
    found[epoch] = found[epoch] + rest
    for later in range(epoch + 1, epochs):
        found.append(walk(sifter(loader), loader, sifter.model, epoch=later))
    return (found, streams()), data.read, rest


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_epoch_equals_the_whole_one_and_reads_nothing_again(kind: str, way: str) -> None:
    sifting = {"keep": lambda step: 0.5 if step % 2 else 0.3, "warmup_steps": 1}
    whole_data = Counted()
    sifter = make_sifter(way, **sifting)
    want = sifted(sifter, make_loader(kind, whole_data))
    for stop in (1, 3, 5, 9):
        if stop >= sifter.step:
            continue
        found, read, _ = interrupted(kind, way, stop, sifting=sifting)
        assert found == want, stop
        assert read == whole_data.read[-len(read) :]


@pytest.mark.parametrize("way", WAYS)
def test_so_it_is_with_workers_that_read_ahead(way: str) -> None:
    options: Any = {"num_workers": 2, "prefetch_factor": 3}
    sifting = {"keep": lambda step: 0.5 if step % 2 else 0.3}
    want, _ = sifted(make_sifter(way, **sifting), make_loader("generator", Counted(), **options))
    for stop in (2, 6, 11):
        (found, _), _, _ = interrupted("generator", way, stop, sifting=sifting, **options)
        # what is drawn at random in the workers is not promised
        assert [ids(epoch) for epoch in found] == [ids(epoch) for epoch in want], stop


def test_another_loader_than_the_one_saved_with_is_refused() -> None:
    sifter, loader = make_sifter("scored"), make_loader("shuffled", Counted())
    walk(sifter(loader), loader, sifter.model, stop=3)
    state = through_a_file(sifter)
    for other, message in (
        (make_loader("shuffled", Counted(), 4), "6 batches of this loader hold 24 samples, and 30"),
        (make_loader("shuffled", Counted(11)), "an epoch of 37 samples, and the data set has 11"),
        (
            DataLoader(Counted(), 5, sampler=torch.randperm(11).tolist()),
            "order ended after 3 batches, and 6 had been drawn",
        ),
        (
            [(torch.zeros(4, 5), torch.zeros(4).long())],
            "position among indices of a DataLoader, and",
        ),
    ):
        again = make_sifter("scored")
        again.load_state_dict(state)
        with pytest.raises(ValueError, match=message):
            next(iter(again(other)))


def pair(x: Tensor, y: Tensor) -> Any:
    return x, y


def mapped(x: Tensor, y: Tensor) -> Any:
    return {"x": x, "y": y}


def nested(x: Tensor, y: Tensor) -> Any:
    return {"deep": [(x, [f"number {int(row[0])}" for row in x])], "y": y, "same": 3.5}


def padded(x: Tensor, y: Tensor) -> Any:
    """Sequences as long as the longest of the batch, whose tokens are the sample's own number."""
    sizes = [length_of(int(row[0])) for row in x]
    tokens = torch.full((len(x), max(sizes)), -1)
    for row, (number, size) in enumerate(zip(x[:, 0].long().tolist(), sizes, strict=True)):
        tokens[row, :size] = number
    return {"x": x, "y": y, "tokens": tokens}


def check_together(batch: Any, x: Tensor) -> None:
    """What a collate function has put into a batch is still beside its own sample."""
    if "deep" in batch:
        assert batch["deep"][0][1] == [f"number {int(row[0])}" for row in x]
    elif "tokens" in batch:
        for number, row in zip(x[:, 0].long().tolist(), batch["tokens"].tolist(), strict=True):
            assert row[: length_of(number)] == [number] * length_of(number)
            assert set(row[length_of(number) :]) <= {-1}


COLLATES: dict[str, tuple[Any, Any, Any]] = {  # of the batch: how it is made, x, y
    "pair": (pair, lambda batch: batch[0], lambda batch: batch[1]),
    "mapped": (mapped, lambda batch: batch["x"], lambda batch: batch["y"]),
    "nested": (nested, lambda batch: batch["deep"][0][0], lambda batch: batch["y"]),
    "padded": (padded, lambda batch: batch["x"], lambda batch: batch["y"]),
}
ANY: dict[str, Any] = {
    "kind": st.sampled_from(KINDS),
    "way": st.sampled_from(list(WAYS)),
    "collate": st.sampled_from(list(COLLATES)),
    "samples": st.integers(4, 40),
    "size": st.integers(1, 9),
    "ratios": st.lists(st.floats(0.05, 1.0), min_size=1, max_size=4),
    "warmup": st.integers(0, 3),
    "stop": st.integers(1, 20),
    # torchdata's, and whether it was asked for its state before the loop, by which it begins
    "cls": st.sampled_from([DataLoader, StatefulDataLoader]),
    "begun": st.booleans(),
}


# a place that the order is drawn up to before its next indices are asked for
DRAWN_LATE: dict[str, Any] = {
    "kind": "tensors",
    "way": "scored",
    "collate": "pair",
    "samples": 7,
    "size": 3,
    "ratios": [1.0],
    "warmup": 0,
    "stop": 1,
    "cls": StatefulDataLoader,
    "begun": False,
}


@settings(max_examples=60)
@given(**ANY)
@example(**DRAWN_LATE)
def test_any_loader_any_ratio_any_interruption(**drawn: Any) -> None:
    check_any(**drawn)


@settings(max_examples=8)
@given(**{**ANY, "samples": st.integers(4, 16)}, ahead=st.integers(1, 3), both=st.booleans())
def test_so_it_is_with_any_number_of_workers(ahead: int, both: bool, **drawn: Any) -> None:
    check_any(**drawn, num_workers=1 + both, prefetch_factor=ahead)


def check_any(
    kind: str,
    way: str,
    collate: str,
    samples: int,
    size: int,
    ratios: list[float],
    warmup: int,
    stop: int,
    cls: Any,
    begun: bool,
    **options: Any,
) -> None:
    """Two epochs: sizes, order and, after an interruption, what is left of them."""
    make, x_of, y_of = COLLATES[collate]

    def join(rows: list[Any]) -> Any:
        return make(torch.stack([row[0] for row in rows]), torch.stack([row[1] for row in rows]))

    def fresh() -> tuple[Sifter, DataLoader[Any], Counted]:
        data = Counted(samples, alike=bool(options))  # what workers draw at random is not promised
        asked = {
            "keep": lambda step: ratios[step % len(ratios)],
            "forward": lambda net, batch: net(x_of(batch)),
            "labels": y_of,
            "warmup_steps": warmup,
        }
        seed_everything()  # torchdata's loaders draw a seed when they are made
        loader = make_loader(kind, data, size, cls=cls, collate_fn=join, **options)
        seed_everything()
        if begun and cls is not DataLoader:
            loader.state_dict()  # type: ignore[attr-defined]
        return make_sifter(way, **asked), loader, data

    def epoch(
        batches: Any, loader: Any, net: Any, number: int, stop: int | None = None
    ) -> list[list[list[float]]]:
        """As `walk`: what is in the batches belongs together."""
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(number)
        found = []
        for batch in batches:
            x, y = x_of(batch), y_of(batch)
            net(x)
            torch.rand(3)
            if isinstance(batch, dict):
                check_together(batch, x)
            found.append(torch.cat([x, y[:, None]], dim=1).tolist())
            if len(found) == stop:
                break
        return found

    unused, loader, _ = fresh()
    plain = [epoch(loader, loader, unused.model, number) for number in range(2)]

    sifter, loader, data = fresh()
    if order_is_lost(loader):
        refused = pytest.raises(ValueError, match="needs to know which sample is which")
        with refused if way == "memory" else nullcontext():
            assert len(sifter(loader)) == len(plain[0])
        return
    whole = [epoch(sifter(loader), loader, sifter.model, number) for number in range(2)]
    end = streams()
    assert [list(map(len, one)) for one in whole] == [list(map(len, one)) for one in plain]
    steps = [len(batch) for one in plain for batch in one]
    drawn = [
        n if step < warmup else math.ceil(n / ratios[step % len(ratios)] - 1e-9)
        for step, n in enumerate(steps)
    ]
    assert sifter.stats().candidates_seen == sum(drawn)
    unsifted = min(warmup, len(plain[0]))
    if options:  # what workers read is not told
        assert [ids(whole[0])[:unsifted]] == [ids(plain[0])[:unsifted]]
    elif way == "scored":
        assert whole[0][:unsifted] == plain[0][:unsifted]
        check_order(kind, data.read, ids(plain[0]), drawn[: len(plain[0])])
    else:
        assert data.read == [i for one in whole for batch in ids(one) for i in batch]

    if stop in (len(plain[0]), len(plain[0]) + len(plain[1])) or stop > len(steps):
        return  # between two epochs there is no place to find again
    sifter, loader, _ = fresh()
    first = epoch(sifter(loader), loader, sifter.model, 0, stop)
    found = [first]
    if stop > len(first):
        found.append(epoch(sifter(loader), loader, sifter.model, 1, stop - len(first)))
    state, now = through_a_file(sifter), RandomState.now()
    sifter, loader, again = fresh()
    seed_everything(99)
    sifter.load_state_dict(state)
    now.restore()
    for number in range(len(found) - 1, 2):
        rest = epoch(sifter(loader), loader, sifter.model, number)
        found[number:] = [found[number] + rest if number < len(found) else rest]
    assert found == whole
    if options:  # what workers read is not told
        return
    assert streams() == end
    assert again.read == data.read[len(data.read) - len(again.read) :]


def test_a_sifter_called_on_a_loader_is_one_that_can_be_iterated_again() -> None:
    sifter = Sifter(Net(), exit=1, score="loss", keep=0.5)
    data = [(torch.randn(12, 8), torch.randint(0, 5, (12,))) for _ in range(3)]
    loader = sifter(data)
    assert isinstance(loader, SiftedLoader)
    assert (len(list(loader)), len(list(loader))) == (3, 3)
    assert sifter.stats().steps == 6


class Asked(Counted):
    """Read by a place and a seed; to ask for a sample's name must not happen."""

    def __getitem__(self, drawn: Any) -> Any:
        return super().__getitem__(drawn[0])

    def sample_id(self, drawn: Any) -> Any:
        raise AssertionError(drawn)


def test_in_the_plain_loop_nobody_asks_which_samples_they_are() -> None:
    data = Asked()
    pairs: Any = [(place, 0) for place in range(len(data))]
    sifter = make_sifter("scored", keep=1.0)
    found = walk(sifter(DataLoader(data, 5, sampler=pairs)), DataLoader(data), sifter.model)
    assert sum(map(len, found)) == 37


def beside_another(make: Any, workers: int, persistent: bool) -> Any:
    """Two epochs of two loaders side by side, and one that is begun and left before each."""
    options: Any = {"num_workers": workers, "persistent_workers": persistent}
    loader, other = (make_loader("shuffled", Counted(), 5, **options) for _ in range(2))
    seed_everything()
    found: list[Any] = []
    for _ in range(2):
        left = iter(make(loader))
        found += [
            (a.tolist(), b.tolist()) for (a, _), (b, _) in zip(make(loader), other, strict=True)
        ]
        del left
    return found, [batch.tolist() for batch, _ in loader], streams()


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("draws", ["samples", "batch"])
def test_an_iteration_begins_when_the_plain_one_does(
    workers: int, persistent: bool, draws: str
) -> None:
    persistent = persistent and bool(workers)
    sifter = make_sifter("scored", keep=1.0, draws=draws)
    want = beside_another(lambda loader: loader, workers, persistent)
    assert beside_another(sifter, workers, persistent) == want
