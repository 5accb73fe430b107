from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import DataLoader

from sifting import MemoryExit, Sifter
from sifting.data.pooling import PoolSource
from sifting.rng import RandomState
from tests.helpers.loaders import model, through_a_file
from tests.helpers.streams import Placed, Stream


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


def numbers(batches: Any, stop: int | None = None) -> list[Any]:
    return [[int(row[0]) for row in batch] for batch in walk(batches, stop)]


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")  # torchdata's call
@pytest.mark.parametrize("keep", [0.5, 0.4, 0.23])
def test_a_stateful_loader_goes_on_by_its_own_state(keep: float) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def fresh() -> tuple[Any, Placed]:
        data = Placed()
        generator = torch.Generator().manual_seed(5)
        return stateful.StatefulDataLoader(data, 4, generator=generator), data

    own, (loader, data) = sifter(keep=keep), fresh()
    torch.manual_seed(3)
    whole = [walk(own(loader)) for _ in range(2)]
    assert [len(batch) for batch in whole[0]] == [4, 4, 4, 4, 4, 2]
    for stop in range(1, 11):
        own, (loader, cut) = sifter(keep=keep), fresh()
        torch.manual_seed(3)
        begun = walk(own(loader), min(stop, 6))
        if stop > 6:
            begun += walk(own(loader), stop - 6)
        if stop == 6:  # between two epochs there is no place
            continue
        state, now = through_a_file(own), RandomState.now()
        held = len(state["cursor"]["position"]["held"])
        own, (loader, again) = sifter(keep=keep), fresh()
        own.load_state_dict(state)
        now.restore()
        found = begun + walk(own(loader)) + (walk(own(loader)) if stop < 6 else [])
        assert found == whole[0] + whole[1], stop
        # nothing is read again but the batches that a step was cut from, and those of a pass's first
        # step with the last one of the pass before
        left = len(data.read) - len(cut.read)
        first = state["cursor"]["position"]["taken"] <= held
        assert left <= len(again.read) <= left + 4 * (held + first), stop
        assert held or len(again.read) == left, stop
        assert again.read == data.read[len(data.read) - len(again.read) :], stop


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning")
def test_a_stateful_loader_goes_on_with_workers_too_and_no_other_from_its_state() -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def loader() -> Any:
        return stateful.StatefulDataLoader(Placed(), 4, num_workers=1, prefetch_factor=3)

    own = sifter(keep=0.4)
    whole = numbers(own(loader()))
    own = sifter(keep=0.4)
    begun = numbers(own(loader()), 3)
    state = through_a_file(own)
    own = sifter(keep=0.4)
    own.load_state_dict(state)
    assert begun + numbers(own(loader())) == whole
    own.load_state_dict(state)
    with pytest.raises(ValueError, match="a StatefulDataLoader's own, and this loader is a DataL"):
        next(iter(own(DataLoader(Stream(), 4))))


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
    source = PoolSource(batches, whole=False)
    assert source.steps_of_a_pass(lambda step, size: 2 * size) == 2
    with pytest.raises(TypeError, match="sizes of a DataLoader's batches cannot be determined"):
        PoolSource(DataLoader(Stream(), 4), whole=False).steps_of_a_pass(max)


def padded(numbers: list[int]) -> dict[str, Tensor]:
    """A batch of sequences as long as its longest, whose tokens are the sample's own number."""
    sizes = [1 + number % 4 for number in numbers]
    tokens, mask = (torch.full((len(numbers), max(sizes)), fill) for fill in (-1, 0))
    for row, (number, size) in enumerate(zip(numbers, sizes, strict=True)):
        tokens[row, :size], mask[row, :size] = number, 1
    number_B = torch.tensor(numbers)
    x = torch.stack([number_B * k for k in range(1, 6)], dim=1).float().sin()
    found = {"x": x, "labels": number_B % 3, "number": number_B}
    return {**found, "tokens": tokens, "attention_mask": mask}


@settings(max_examples=25)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    ratios=st.lists(st.floats(0.1, 1.0), min_size=1, max_size=3),
    warmup=st.integers(0, 2),
    stop=st.integers(1, 7),
    by_id=st.booleans(),
)
def test_any_batches_any_ratio_any_interruption(
    sizes: list[int], ratios: list[float], warmup: int, stop: int, by_id: bool
) -> None:
    """Batches as a stream gives them: of any sizes, padded each to its own longest sequence."""

    def batches() -> list[Any]:
        rows = iter(range(sum(sizes)))
        return [padded([next(rows) for _ in range(size)]) for size in sizes]

    def fresh() -> Sifter:
        return sifter(
            exit=MemoryExit() if by_id else "last",
            ids="number" if by_id else None,
            keep=lambda step: ratios[step % len(ratios)],
            warmup_steps=warmup,
            pad={"tokens": -1},  # which batches of one sequence each do not tell
            forward=lambda net, batch: net(batch["x"]),
            labels=lambda batch: batch["labels"],
        )

    def walk(own: Sifter, stop: int | None = None) -> list[list[int]]:
        found: list[list[int]] = []
        for batch in own(batches()):
            numbers = batch["number"].tolist()
            own.model(batch["x"])
            for number, row in zip(numbers, batch["tokens"].tolist(), strict=True):
                assert [token for token in row if token != -1] == [number] * (1 + number % 4)
            found.append(numbers)
            if len(found) == stop:
                break
        return found

    own = fresh()
    whole = walk(own)
    assert [len(numbers) for numbers in whole] == sizes  # every step gets exactly its own
    wanted = [
        size if step < warmup else math.ceil(size / ratios[step % len(ratios)] - 1e-9)
        for step, size in enumerate(sizes)
    ]
    assert own.stats().candidates_seen == sum(wanted)
    # a step's candidates are the next of the loader's own order, pass after pass
    place = 0
    for numbers, count in zip(whole, wanted, strict=True):
        candidates = [number % sum(sizes) for number in range(place, place + count)]
        rest = list(candidates)
        for number in numbers:
            rest.remove(number)  # raises where it was none of them
        place += count
    if stop < len(sizes):
        own = fresh()
        begun = walk(own, stop)
        state = through_a_file(own)
        own = fresh()
        own.load_state_dict(state)
        assert begun + walk(own) == whole
